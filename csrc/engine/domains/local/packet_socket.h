// Reading from a SOCK_SEQPACKET Unix socket without waiting.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PACKET_SOCKET_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PACKET_SOCKET_H_

#include <sys/socket.h>

namespace jax_fabric::local {

// recvmsg with MSG_DONTWAIT, where 0 really means that the other end is closed and every packet was read.
//
// Linux looks for a packet, and where there is none for the end of the connection, with no lock over both: if the other
// end sends and closes in between, it reports the end although a packet lies there (unix_dgram_recvmsg in
// net/unix/af_unix.c, seen with 6.18; rare). Nothing comes after the end, so whoever asks a second time gets what
// there is.
inline ssize_t ReceivePacket(int socket, msghdr& message, int flags) {
  const msghdr before = message;
  const ssize_t count = recvmsg(socket, &message, flags | MSG_DONTWAIT);
  if (count != 0) return count;
  message = before;  // recvmsg has changed the lengths
  return recvmsg(socket, &message, flags | MSG_DONTWAIT);
}

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PACKET_SOCKET_H_
