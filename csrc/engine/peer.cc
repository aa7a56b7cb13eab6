#include "csrc/engine/peer.h"

#include "csrc/engine/group_driver.h"

namespace jax_fabric {

void Lane::Append(Stream* stream) {
  stream->queued = true;
  stream->previous = tail;
  stream->next = nullptr;
  (tail == nullptr ? head : tail->next) = stream;
  tail = stream;
}

void Lane::Remove(Stream* stream) {
  stream->queued = false;
  (stream->previous == nullptr ? head : stream->previous->next) = stream->next;
  (stream->next == nullptr ? tail : stream->next->previous) = stream->previous;
  stream->previous = stream->next = nullptr;
}

void Peer::ConnectRequest::Start(GroupDriver& driver) { driver.Connect(*peer); }

void Peer::RemoveRequest::Start(GroupDriver& driver) { driver.Remove(*peer); }

}  // namespace jax_fabric
