#include "csrc/kernels/cpu/kernels_testing.h"

namespace jax_fabric::kernels::testing {

const KernelSet& KernelsUnderTest() {
  static constexpr KernelSet kCpu = {DispatchSend,   DispatchReceive, CombineSend,
                                     CombineReceive, RedispatchSend,  RedispatchReceive};
  return kCpu;
}

}  // namespace jax_fabric::kernels::testing
