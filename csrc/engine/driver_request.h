// What travels from any thread to the worker: an object of the submitter's, linked into the driver's queue.
#ifndef JAX_FABRIC_ENGINE_DRIVER_REQUEST_H_
#define JAX_FABRIC_ENGINE_DRIVER_REQUEST_H_

namespace jax_fabric {

class GroupDriver;

class DriverRequest {
 public:
  DriverRequest* next = nullptr;  // of MpscQueue while queued

  // On the worker. The object may be queued again, or freed by its owner, once this has told it so.
  virtual void Start(GroupDriver& driver) = 0;

 protected:
  ~DriverRequest() = default;  // never deleted through this class
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DRIVER_REQUEST_H_
