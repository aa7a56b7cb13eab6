#include "csrc/engine/domains/local/process_hub.h"

#include <unistd.h>

#include <utility>

#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/local/descriptor_server.h"

namespace jax_fabric::local {

Result<ProcessHub*> ProcessHub::Get() {
  // Never destroyed: domains may outlive static destructors. After a fork the parent's hub is left alone, its
  // thread does not exist here.
  static std::mutex mutex;
  static ProcessHub* hub = nullptr;
  const auto pid = static_cast<uint32_t>(getpid());
  std::lock_guard lock(mutex);
  if (hub == nullptr || hub->process_.pid != pid) {
    JF_ASSIGN_OR_RETURN(const ProcessIdentity process, ProcessIdentity::Self());
    JF_ASSIGN_OR_RETURN(const uint64_t process_id, RandomId());
    hub = new ProcessHub(process, process_id);
  }
  return hub;
}

ProcessHub::ProcessHub(const ProcessIdentity& process, uint64_t process_id)
    : process_(process), process_id_(process_id) {}

ProcessHub::~ProcessHub() = default;

Result<LocalAddress> ProcessHub::Register(std::shared_ptr<Endpoint> endpoint) {
  std::lock_guard server_lock(server_mutex_);
  if (!server_) {
    JF_ASSIGN_OR_RETURN(server_, DescriptorServer::Start([this](uint64_t incarnation) { return Find(incarnation); }));
  }
  ++server_users_;
  LocalAddress address;
  address.process = process_;
  address.process_id = process_id_;
  address.incarnation = endpoint->mailbox->header().incarnation;
  address.socket_name = server_->socket_name();
  std::lock_guard lock(mutex_);
  endpoints_[address.incarnation] = std::move(endpoint);
  return address;
}

void ProcessHub::Unregister(uint64_t incarnation) {
  {
    std::lock_guard lock(mutex_);
    endpoints_.erase(incarnation);
    for (const auto& [other, endpoint] : endpoints_) endpoint->mailbox->RingIfArmed();
  }
  std::lock_guard server_lock(server_mutex_);
  if (--server_users_ == 0) server_.reset();
}

std::shared_ptr<Endpoint> ProcessHub::Find(uint64_t incarnation) const {
  std::lock_guard lock(mutex_);
  const auto found = endpoints_.find(incarnation);
  return found == endpoints_.end() ? nullptr : found->second;
}

}  // namespace jax_fabric::local
