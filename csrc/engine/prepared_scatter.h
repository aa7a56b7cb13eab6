#ifndef JAX_FABRIC_ENGINE_PREPARED_SCATTER_H_
#define JAX_FABRIC_ENGINE_PREPARED_SCATTER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "csrc/engine/abandoned_operations.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/message_pool.h"
#include "csrc/engine/request_planner.h"
#include "csrc/engine/scatter.h"
#include "csrc/engine/sharded_operation.h"

namespace jax_fabric {

// What a PreparedScatter holds; lives on where the scatter is destroyed while posts are in flight.
class ScatterState final : public OperationOwner, public AbandonedOperation {
 public:
  // What is referred to outlives the engine's use of the scatter.
  static Result<std::unique_ptr<PreparedScatter>> Prepare(GroupDriver& driver, const RequestPlanner& planner,
                                                          const MessagePool& messages,
                                                          std::span<const ScatterEntry> entries);

  bool idle() const { return state_.load(std::memory_order_acquire) == kIdle; }  // partner: Release
  void SetLength(size_t entry, uint64_t length);
  Status Post(Deadline deadline, WorkerCallback callback, const std::optional<WriteGrant>& grant);
  // The handle is gone: frees itself now, or when nothing is in flight any more, or the driver frees it.
  void Abandon();

  void OnSettled(const Error* error, Settlement settlement) override;

 private:
  enum State : uint32_t { kIdle, kBusy, kAbandoned };
  struct Bounds {
    uint64_t length = 0;
    uint64_t longest = 0;  // that source, target and plan have room for
  };

  ScatterState(GroupDriver& driver, const MessagePool& messages) : driver_(driver), messages_(messages) {
    operation_.Reset("scatter", Operation::OnFailure::kContinue);
  }
  ~ScatterState() override = default;

  void Release();
  Status CheckLengths() const;
  Status CheckGrant(const WriteGrant& grant) const;

  GroupDriver& driver_;
  const MessagePool& messages_;
  ShardedOperation operation_;
  std::vector<Bounds> bounds_;
  size_t too_long_ = 0;                       // entries whose length exceeds their bound
  std::optional<uint32_t> common_immediate_;  // that all entries bring, to one peer
  WorkerCallback callback_;
  // kIdle -> kBusy by the poster (acquire), back by the worker (release): hands the fields above to and fro.
  std::atomic<uint32_t> state_{kIdle};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PREPARED_SCATTER_H_
