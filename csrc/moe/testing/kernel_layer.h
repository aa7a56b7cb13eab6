// A layer with its gradient, as a program makes it: dispatch, combine of the tokens, redispatch of x and dispatch-back
// of the tokens, with the real kernels, beside the same kernels run one after the other without any fabric.
#ifndef JAX_FABRIC_MOE_TESTING_KERNEL_LAYER_H_
#define JAX_FABRIC_MOE_TESTING_KERNEL_LAYER_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/moe/channel.h"
#include "csrc/moe/exchanges.h"
#include "csrc/moe/testing/delivery_guard.h"

namespace jax_fabric::moe::testing {

// An exchange with kernels that remembers how it ended.
class KernelOperation {
 public:
  virtual ~KernelOperation() = default;
  virtual ExchangeOperation* exchange() = 0;

  int finishes = 0;
  Error error;
  bool ok() const { return finishes == 1 && error.message.empty(); }
};

// `guard` may be null.
std::unique_ptr<KernelOperation> MakeKernelOperation(const CallSite& site, const kernels::DispatchSendArgs& send,
                                                     const kernels::DispatchReceiveArgs& receive,
                                                     DeliveryGuard* guard = nullptr);

MoeConfig ConfigOf(kernels::testing::World& world, int32_t channels);

class KernelLayer {
 public:
  static constexpr size_t kStages = 4;

  // `index` tells the layers of a program apart. Both worlds start from the same inputs.
  KernelLayer(const kernels::testing::WorldConfig& config, uint64_t seed, int32_t index,
              DeliveryGuard* guard = nullptr);

  // Whether the rank's next stage can be submitted: the one before has ended well. Absent ranks have none.
  bool Ready(int32_t rank) const;
  // Nothing more will happen there: the last stage has ended, or one has ended with an error.
  bool Done(int32_t rank) const;
  void SubmitNext(int32_t rank, Channel& channel);

  // What is wrong with the results of the stages that ended well, or with how others ended; or empty. All elements are
  // compared, those that no kernel writes, too. Of the rank `but_for` nothing is said.
  std::string Failure(int32_t but_for = -1) const;

 private:
  using Array = kernels::testing::Array;
  struct Rank {
    std::vector<std::unique_ptr<KernelOperation>> operations;
    Array combined, redispatched, back;
    std::vector<float> dots, scalars;
  };

  void MakeResults(Rank& rank, const kernels::testing::RankState& state);
  std::unique_ptr<KernelOperation> MakeStage(int32_t r, size_t stage);
  std::unique_ptr<KernelOperation> MakeDispatch(int32_t r, const CallSite& site);
  std::unique_ptr<KernelOperation> MakeCombine(int32_t r, const CallSite& site, kernels::ExchangeKind kind);
  std::unique_ptr<KernelOperation> MakeRedispatch(int32_t r, const CallSite& site);
  // What differs, or null.
  const char* Compare(int32_t r, size_t stage) const;

  // Looking at a world's ranks needs one that is not const.
  mutable kernels::testing::World expected_;
  mutable kernels::testing::World actual_;
  const std::vector<uint8_t> absent_;
  const int32_t index_;
  DeliveryGuard* const guard_;
  std::vector<std::vector<float>> scalars_;
  kernels::testing::World::CombineResult combined_, back_;
  kernels::testing::World::RedispatchResult redispatched_;
  std::vector<Rank> ranks_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_KERNEL_LAYER_H_
