// A dispatch or combine whose kernels are times: messages have the sizes and the metadata of real ones.
#ifndef JAX_FABRIC_MOE_MODEL_MODELLED_CALL_H_
#define JAX_FABRIC_MOE_MODEL_MODELLED_CALL_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "csrc/moe/model/model_options.h"
#include "csrc/moe/model/model_ranks.h"
#include "csrc/moe/model/workload.h"
#include "csrc/moe/operation.h"

namespace jax_fabric::moe::model {

// What a rank's device is doing, and what left it.
struct ModelDevice {
  int64_t free_ns = 0;  // when its last kernel ends
  uint64_t writes = 0;
  uint64_t wire_bytes = 0;

  // A kernel that can start now, and takes so long; when it ends.
  int64_t Run(int64_t now_ns, int64_t kernel_ns) { return free_ns = std::max(free_ns, now_ns) + kernel_ns; }
};

class ModelledCall final : public ExchangeOperation {
 public:
  struct Setting {
    const ModelOptions& options;
    const kernels::SlotLayout layout;  // of this rank
    const Workload& workload;
    ModelRanks& ranks;
    ModelDevice& device;
  };
  // `number` tells the calls of a program apart. `on_end`: the call has ended, with the time at which its last kernel
  // has.
  ModelledCall(const Setting& setting, int64_t number, kernels::ExchangeKind kind,
               std::function<void(const Error*, int64_t)> on_end)
      : ExchangeOperation({1, 1}, number, kind, /*signature=*/1), setting_(setting), on_end_(std::move(on_end)) {}

  // From the launch until the first round's messages are packed. The call is submitted then, and Pack takes no time:
  // what rank 0 announces would otherwise wait for its own kernel on its way out.
  static int64_t FirstSendNs(const Setting& setting, kernels::ExchangeKind kind);

  void Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) override;
  int32_t elements() const override { return 1; }
  kernels::ExpectedRows RowsOf(int32_t round, int32_t source) const override;
  Status Unpack(int32_t round, const void* const* slots) override;
  int32_t rounds() const override;
  void Finish(const Error* error) override { on_end_(error, setting_.device.free_ns); }

 private:
  bool dispatch() const { return kind() == kernels::ExchangeKind::kDispatch; }
  int32_t me() const { return setting_.layout.shape.rank; }
  // Rows from one rank to another in a round of this call.
  int64_t Rows(int32_t from, int32_t to, int32_t round) const;
  int64_t FirstRow(int32_t from, int32_t to, int32_t round) const;
  int64_t PackMessage(int32_t round, int32_t target, kernels::MessageHeader header, std::byte* slot) const;
  int64_t PackMetadata(int32_t target, kernels::MessageHeader& header, std::byte* slot) const;

  const Setting setting_;
  const std::function<void(const Error*, int64_t)> on_end_;
  bool knows_rounds_ = false;
};

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_MODELLED_CALL_H_
