// The CUDA kernels as functions of host memory: the tests of csrc/kernels/cpu run on them as they are.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/cuda/device_copies.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

int64_t RowsBytes(int64_t rows, int64_t hidden, ElementType type) { return rows * hidden * ElementBytes(type); }

// Whether the program was started with --unfused.
bool Unfused() {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    if (argument == "--unfused") return true;
  }
  return false;
}

// The copies of what all kernels take.
class Launch {
 public:
  explicit Launch(const SlotLayout& layout) : layout_(layout), shape_(layout.shape) {
    options_.fused = !Unfused();
    options_.workspace = copies_.Scratch(cuda::WorkspaceBytes(layout, layout.shape.max_tokens));
  }

  DeviceCopies& copies() { return copies_; }

  void Add(SendRoute& route, int64_t t_rows) {
    route.index = copies_.Add(route.index, t_rows * shape_.ranks);
    route.slot = copies_.Add(route.slot, t_rows * shape_.top_k);
    route.token_ends = copies_.Add(route.token_ends, shape_.MaxRounds());
  }
  void Add(ReceiveRoute& route) {
    route.positions = copies_.Add(route.positions, int64_t{shape_.ranks} * shape_.max_tokens * shape_.LocalTopK());
    route.rows = copies_.Add(route.rows, int64_t{shape_.ranks} * shape_.MaxRounds());
  }
  void Add(const void*& rows, int64_t count, ElementType type) {
    rows = copies_.AddBytes(rows, RowsBytes(count, shape_.hidden, type));
  }
  void Add(void*& rows, int64_t count, ElementType type) {
    rows = copies_.AddBytes(rows, RowsBytes(count, shape_.hidden, type), false);
  }
  void AddMessages(void* const*& slots, int64_t*& message_bytes) {
    for (int64_t r = 0; r < shape_.ranks; ++r) send_slots_.push_back(copies_.AddBytes(slots[r], SlotBytes(), false));
    slots = copies_.Add(static_cast<void* const*>(send_slots_.data()), shape_.ranks);
    message_bytes = copies_.Add(message_bytes, shape_.ranks);
  }
  // Every other time they lie one after the other.
  void AddMessages(const void* const*& slots) {
    static int calls = 0;
    if (++calls % 2 == 0) {
      for (int64_t r = 0; r < shape_.ranks; ++r) {
        const auto* slot = static_cast<const uint8_t*>(slots[r]);
        messages_.insert(messages_.end(), slot, slot + SlotBytes());
      }
      options_.first_slot = copies_.Add(static_cast<const uint8_t*>(messages_.data()), shape_.ranks * SlotBytes());
      slots = nullptr;
      return;
    }
    for (int64_t r = 0; r < shape_.ranks; ++r) receive_slots_.push_back(copies_.AddBytes(slots[r], SlotBytes()));
    slots = copies_.Add(static_cast<const void* const*>(receive_slots_.data()), shape_.ranks);
  }

  template <typename Args>
  void Run(cudaError_t (*launch)(const Args&, const cuda::LaunchOptions&), const Args& args) {
    copies_.Upload();
    const cudaError_t error = launch(args, options_);
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    copies_.Download();
  }

 private:
  int64_t SlotBytes() const { return layout_.SlotBytes(); }

  const SlotLayout layout_;
  const MoeShape& shape_ = layout_.shape;
  DeviceCopies copies_;
  cuda::LaunchOptions options_;
  std::vector<void*> send_slots_;
  std::vector<const void*> receive_slots_;
  std::vector<uint8_t> messages_;
};

void RunDispatchSend(const DispatchSendArgs& host) {
  const MoeShape& shape = host.layout.shape;
  Launch launch(host.layout);
  DispatchSendArgs args = host;
  launch.Add(args.x, args.t_rows, args.x_type);
  args.scales = launch.copies().Add(args.scales, args.t_rows * host.layout.ScalesOfRow());
  args.experts = launch.copies().Add(args.experts, int64_t{args.t_rows} * shape.top_k);
  args.weights = launch.copies().Add(args.weights, int64_t{args.t_rows} * shape.top_k);
  args.absent = launch.copies().Add(args.absent, shape.ranks);
  launch.Add(args.route, args.t_rows);
  launch.AddMessages(args.slots, args.message_bytes);
  launch.Run(cuda::DispatchSend, args);
}

void RunDispatchReceive(const DispatchReceiveArgs& host) {
  const MoeShape& shape = host.layout.shape;
  Launch launch(host.layout);
  DispatchReceiveArgs args = host;
  const int64_t rows = args.elements * shape.capacity;
  launch.AddMessages(args.slots);
  launch.Add(args.tokens, rows, args.tokens_type);
  args.scales = host.layout.quantised ? launch.copies().Add(args.scales, rows * host.layout.ScalesOfRow()) : nullptr;
  args.weights = launch.copies().Add(args.weights, rows);
  args.group_sizes = launch.copies().Add(args.group_sizes, int64_t{args.elements} * shape.experts_per_rank);
  launch.Add(args.route);
  args.dropped = launch.copies().Add(args.dropped, args.elements);
  launch.Run(cuda::DispatchReceive, args);
}

void RunCombineSend(const CombineSendArgs& host) {
  const MoeShape& shape = host.layout.shape;
  Launch launch(host.layout);
  CombineSendArgs args = host;
  launch.Add(args.y, shape.capacity, args.y_type);
  args.row_weights = launch.copies().Add(args.row_weights, shape.capacity);
  args.row_scalars = launch.copies().Add(args.row_scalars, shape.capacity);
  launch.Add(args.route);
  launch.AddMessages(args.slots, args.message_bytes);
  launch.Run(cuda::CombineSend, args);
}

void RunCombineReceive(const CombineReceiveArgs& host) {
  Launch launch(host.layout);
  CombineReceiveArgs args = host;
  launch.AddMessages(args.slots);
  launch.Add(args.route, args.t_rows);
  launch.Add(args.out, args.t_rows, args.out_type);
  args.scalars = launch.copies().Add(args.scalars, int64_t{args.t_rows} * host.layout.shape.top_k);
  launch.Run(cuda::CombineReceive, args);
}

void RunRedispatchSend(const RedispatchSendArgs& host) {
  Launch launch(host.layout);
  RedispatchSendArgs args = host;
  launch.Add(args.x, args.t_rows, args.x_type);
  args.scales = launch.copies().Add(args.scales, args.t_rows * host.layout.ScalesOfRow());
  launch.Add(args.route, args.t_rows);
  launch.AddMessages(args.slots, args.message_bytes);
  launch.Run(cuda::RedispatchSend, args);
}

void RunRedispatchReceive(const RedispatchReceiveArgs& host) {
  const MoeShape& shape = host.layout.shape;
  Launch launch(host.layout);
  RedispatchReceiveArgs args = host;
  launch.AddMessages(args.slots);
  launch.Add(args.route);
  args.row_weights = launch.copies().Add(args.row_weights, shape.capacity);
  launch.Add(args.y, shape.capacity, args.y_type);
  launch.Add(args.out, shape.capacity, args.out_type);
  args.dots = launch.copies().Add(args.dots, shape.capacity);
  args.scales = launch.copies().Add(args.scales, shape.capacity * host.layout.ScalesOfRow());
  launch.Run(cuda::RedispatchReceive, args);
}

}  // namespace

const KernelSet& KernelsUnderTest() {
  static const bool loaded = [] {
    EXPECT_EQ(cuda::LoadKernels(), cudaSuccess);
    return true;
  }();
  static_cast<void>(loaded);
  static constexpr KernelSet kCuda = {RunDispatchSend,   RunDispatchReceive, RunCombineSend,
                                      RunCombineReceive, RunRedispatchSend,  RunRedispatchReceive};
  return kCuda;
}

}  // namespace jax_fabric::kernels::testing
