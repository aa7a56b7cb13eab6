// FabricEndpoint: libfabric's objects of one NIC: fabric, domain, address vector, completion queue, endpoint.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FABRIC_ENDPOINT_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FABRIC_ENDPOINT_H_

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#include <map>
#include <memory>
#include <string>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/efa/efa_domain.h"
#include "csrc/engine/domains/efa/libfabric.h"

namespace jax_fabric::efa {

// Every object of libfabric begins with its fid.
struct FidCloser {
  template <typename Object>
  void operator()(Object* object) const {
    fi_close(&object->fid);
  }
};
template <typename Object>
using Fid = std::unique_ptr<Object, FidCloser>;

class FabricEndpoint {
 public:
  static Result<std::unique_ptr<FabricEndpoint>> Open(const EfaDomainOptions& options);
  ~FabricEndpoint();

  const Libfabric& library() const { return *library_; }
  const fi_info& info() const { return *info_; }
  fid_domain* domain() const { return domain_.get(); }
  fid_ep* ep() const { return ep_.get(); }
  // Of all that is posted here and all that comes: reading two costs twice as much, and software providers move
  // everything on in either.
  fid_cq* queue() const { return queue_.get(); }
  const Bytes& name() const { return name_; }  // what peers put into their address vectors
  bool Needs(uint64_t mr_mode) const { return (info_->domain_attr->mr_mode & mr_mode) != 0; }
  bool is_efa() const { return is_efa_; }
  bool is_shm() const { return is_shm_; }
  // Each write with an immediate takes one of this side's receives.
  bool immediates_take_receives() const { return immediates_take_receives_; }

  // What the provider says of an error that belongs to no operation: its endpoint is of no use afterwards. EFA's ends
  // the process where nobody listens. Empty: nothing.
  std::string TakeError();

  Result<fi_addr_t> Insert(ByteView name);
  // `left`: the other endpoint is closed. EFA's provider numbers messages between two endpoints, from nought with every
  // insertion; an endpoint that is inserted again would end the other's process (its message "already processed").
  // So one that may live stays, and Insert finds it.
  void Remove(fi_addr_t address, bool left);
  // Nothing lands or leaves any more. Registrations stay.
  void Shut() { ep_.reset(); }

 private:
  explicit FabricEndpoint(const Libfabric* library) : library_(library) {}
  Status Choose(const EfaDomainOptions& options);
  std::string Found(const EfaDomainOptions& options) const;
  Status OpenObjects(const EfaDomainOptions& options);
  Status SetOptions(bool device_memory);

  const Libfabric* library_;
  fi_info* info_ = nullptr;
  bool is_efa_ = false;
  bool is_shm_ = false;
  bool immediates_take_receives_ = false;
  // Closed in the opposite order.
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_av> av_;
  Fid<fid_eq> events_;
  Fid<fid_cq> queue_;
  Fid<fid_ep> ep_;
  Bytes name_;
  std::map<Bytes, fi_addr_t> inserted_;
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FABRIC_ENDPOINT_H_
