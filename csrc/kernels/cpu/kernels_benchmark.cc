// GB/s of every kernel beside those of memcpy, on one core: rows read plus rows written, over the best time of many.
// Kernels run for `here` ranks in turn, as they do where so many ranks share a cache; with all stores into the cache,
// and with all of them past it.
//
// kernels_benchmark [tokens hidden top_k experts ranks here]
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {
namespace {

constexpr int kRepeats = 15;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, Free>;

// Touched, so that no page fault is measured. The bytes are small numbers in bfloat16 and float16.
Buffer MakeBuffer(int64_t bytes) {
  Buffer buffer(std::aligned_alloc(4096, AlignUp(std::max<int64_t>(bytes, 1), 4096)));
  std::memset(buffer.get(), 0x3c, bytes);
  return buffer;
}

// Not the time of day: other programs on this machine count less that way.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Report(const char* name, int64_t bytes, const std::function<void()>& run) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const double begin = ThreadSeconds();
    run();
    best = std::min(best, ThreadSeconds() - begin);
  }
  std::printf("  %-36s %9.1f us %8.2f MB %7.2f GB/s\n", name, best * 1e6, bytes * 1e-6, bytes / best * 1e-9);
}

// One rank; every source, itself included, sends it what it sends to rank 0.
class Benchmark {
 public:
  Benchmark(const MoeShape& shape, ElementType type, ElementType dispatch_type, int64_t cache_bytes)
      : layout_{shape, dispatch_type, type, type, dispatch_type == ElementType::kFloat8E4m3fn},
        type_(type),
        cache_bytes_(cache_bytes),
        rows_(shape.max_tokens, 0),
        x_(MakeBuffer(int64_t{shape.max_tokens} * shape.hidden * ElementBytes(type))),
        tokens_(MakeBuffer(shape.capacity * shape.hidden * ElementBytes(type))),
        y_(MakeBuffer(shape.capacity * shape.hidden * ElementBytes(type))),
        experts_(int64_t{shape.max_tokens} * shape.top_k),
        weights_(experts_.size(), 0.125f),
        index_(int64_t{shape.max_tokens} * shape.ranks),
        slot_(experts_.size()),
        token_ends_(shape.MaxRounds()),
        positions_(int64_t{shape.ranks} * shape.max_tokens * shape.LocalTopK()),
        rows_received_(shape.ranks),
        row_weights_(shape.capacity),
        dots_(shape.capacity),
        group_sizes_(shape.experts_per_rank),
        message_bytes_(shape.ranks) {
    for (int32_t r = 0; r < shape.ranks; ++r) {
      buffers_.push_back(MakeBuffer(layout_.SlotBytes()));
      slots_.push_back(buffers_.back().get());
    }
    // Every token goes to distinct experts, as after a top_k.
    std::mt19937_64 random(1);
    std::vector<int32_t> all(shape.experts);
    for (int32_t e = 0; e < shape.experts; ++e) all[e] = e;
    for (int64_t t = 0; t < shape.max_tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random);
      std::copy_n(all.begin(), shape.top_k, experts_.begin() + t * shape.top_k);
    }
  }

  // Rows of the kernels' messages and results, in bytes.
  struct Moved {
    int64_t sent = 0, received = 0, entries = 0, tokens = 0, capacity = 0;
  };
  Moved Prepare() {
    const MoeShape& shape = layout_.shape;
    const int64_t row = shape.hidden * ElementBytes(type_);
    Send();
    Moved moved;
    moved.sent = row * std::count_if(index_.begin(), index_.end(), [](int32_t i) { return i >= 0; });
    // The messages of all sources are the ones to this rank, all full.
    for (int32_t r = 1; r < shape.ranks; ++r) std::memcpy(slots_[r], slots_[0], message_bytes_[0]);
    Receive();
    for (int32_t count : rows_received_) moved.received += row * count;
    for (int32_t size : group_sizes_) moved.entries += row * size;
    moved.tokens = row * shape.max_tokens;
    moved.capacity = row * shape.capacity;
    return moved;
  }
  // This rank's tokens look into messages that have enough rows for their route.
  void FillHeaders() {
    for (void* slot : slots_) static_cast<MessageHeader*>(slot)->rows = layout_.shape.max_tokens;
  }
  void Send() {
    DispatchSend({.layout = layout_,
                  .stamp = {},
                  .t_rows = layout_.shape.max_tokens,
                  .x_type = type_,
                  .x = x_.get(),
                  .experts = experts_.data(),
                  .weights = weights_.data(),
                  .route = {index_.data(), slot_.data(), token_ends_.data()},
                  .slots = slots_.data(),
                  .message_bytes = message_bytes_.data(),
                  .cache_bytes = cache_bytes_});
  }
  void Receive() {
    DispatchReceive({.layout = layout_,
                     .slots = slots_.data(),
                     .tokens_type = type_,
                     .tokens = tokens_.get(),
                     .weights = row_weights_.data(),
                     .group_sizes = group_sizes_.data(),
                     .route = {positions_.data(), rows_received_.data()},
                     .cache_bytes = cache_bytes_});
  }
  void SendWeighted() { SendSums(row_weights_.data()); }
  void SendUnweighted() { SendSums(nullptr); }
  void SendSums(const float* weights) {
    CombineSend({.layout = layout_,
                 .stamp = {},
                 .y_type = type_,
                 .y = y_.get(),
                 .row_weights = weights,
                 .route = {positions_.data(), rows_received_.data()},
                 .slots = slots_.data(),
                 .message_bytes = message_bytes_.data(),
                 .cache_bytes = cache_bytes_});
  }
  void ReceiveSums() {
    CombineReceive({.layout = layout_,
                    .slots = slots_.data(),
                    .t_rows = layout_.shape.max_tokens,
                    .route = {index_.data(), slot_.data(), token_ends_.data()},
                    .out_type = type_,
                    .out = x_.get(),
                    .cache_bytes = cache_bytes_});
  }
  void SendAgain() {
    RedispatchSend({.layout = layout_,
                    .stamp = {},
                    .t_rows = layout_.shape.max_tokens,
                    .x_type = type_,
                    .x = x_.get(),
                    .route = {index_.data(), slot_.data(), token_ends_.data()},
                    .slots = slots_.data(),
                    .message_bytes = message_bytes_.data(),
                    .cache_bytes = cache_bytes_});
  }
  void ReceiveAgain() {
    RedispatchReceive({.layout = layout_,
                       .slots = slots_.data(),
                       .route = {positions_.data(), rows_received_.data()},
                       .row_weights = row_weights_.data(),
                       .y_type = type_,
                       .y = y_.get(),
                       .out_type = type_,
                       .out = tokens_.get(),
                       .dots = dots_.data(),
                       .cache_bytes = cache_bytes_});
  }

 private:
  SlotLayout layout_;
  ElementType type_;
  int64_t cache_bytes_;
  std::vector<int32_t> rows_;
  Buffer x_, tokens_, y_;
  std::vector<int32_t> experts_;
  std::vector<float> weights_;
  std::vector<int32_t> index_, slot_, token_ends_, positions_, rows_received_;
  std::vector<float> row_weights_, dots_;
  std::vector<int32_t> group_sizes_;
  std::vector<int64_t> message_bytes_;
  std::vector<Buffer> buffers_;
  std::vector<void*> slots_;
};

void ReportKernels(const MoeShape& shape, ElementType type, ElementType dispatch_type, int here, int64_t cache_bytes) {
  std::vector<std::unique_ptr<Benchmark>> ranks;
  Benchmark::Moved moved;
  for (int i = 0; i < here; ++i) {
    ranks.push_back(std::make_unique<Benchmark>(shape, type, dispatch_type, cache_bytes));
    moved = ranks.back()->Prepare();
  }
  const auto report = [&](const char* name, int64_t bytes, void (Benchmark::*kernel)()) {
    Report(name, here * bytes, [&] {
      for (auto& rank : ranks) ((*rank).*kernel)();
    });
  };
  const int64_t all = 3 * moved.sent + 2 * (moved.received + moved.entries) + moved.tokens;
  Report("dispatch and combine", here * all, [&] {
    for (auto& rank : ranks) rank->Send();
    for (auto& rank : ranks) rank->Receive();
    for (auto& rank : ranks) rank->SendWeighted();
    for (auto& rank : ranks) rank->ReceiveSums();
  });
  for (auto& rank : ranks) rank->Prepare();
  const auto fill_headers = [&] {
    for (auto& rank : ranks) rank->FillHeaders();
  };
  report("DispatchReceive", moved.received + moved.entries, &Benchmark::Receive);
  report("CombineSend, weighted", moved.received + moved.entries, &Benchmark::SendWeighted);
  report("CombineSend, unweighted", moved.received + moved.entries, &Benchmark::SendUnweighted);
  fill_headers();
  report("CombineReceive", moved.sent + moved.tokens, &Benchmark::ReceiveSums);
  report("RedispatchSend", 2 * moved.sent, &Benchmark::SendAgain);
  fill_headers();
  // It clears what nothing goes to.
  report("RedispatchReceive, weights and dots", moved.received + moved.entries + moved.capacity,
         &Benchmark::ReceiveAgain);
  report("DispatchSend", 2 * moved.sent, &Benchmark::Send);
}

void ReportMemcpy(int64_t bytes, int64_t row) {
  const Buffer from = MakeBuffer(bytes);
  const Buffer to = MakeBuffer(bytes);
  Report("memcpy", 2 * bytes, [&] { std::memcpy(to.get(), from.get(), bytes); });
  Report("memcpy by row", 2 * bytes, [&] {
    for (int64_t i = 0; i + row <= bytes; i += row) {
      std::memcpy(static_cast<char*>(to.get()) + i, static_cast<char*>(from.get()) + i, row);
    }
  });
}

}  // namespace
}  // namespace jax_fabric::kernels

int main(int argc, char** argv) {
  namespace jk = jax_fabric::kernels;
  int32_t sizes[] = {128, 7168, 8, 64, 8, 8};
  for (int i = 1; i < argc && i <= 6; ++i) sizes[i - 1] = std::atoi(argv[i]);
  jk::MoeShape shape;
  shape.max_tokens = sizes[0];
  shape.hidden = sizes[1];
  shape.top_k = sizes[2];
  shape.experts = sizes[3];
  shape.ranks = sizes[4];
  shape.experts_per_rank = (shape.experts + shape.ranks - 1) / shape.ranks;
  // Twice what balanced routing needs.
  shape.capacity = 2 * int64_t{shape.max_tokens} * shape.top_k;
  std::printf("T %d, H %d, K %d, E %d, %d ranks, %d here\n", shape.max_tokens, shape.hidden, shape.top_k, shape.experts,
              shape.ranks, sizes[5]);
  const struct {
    const char* name;
    jk::ElementType type, dispatch_type;
  } kTypes[] = {{"bfloat16", jk::ElementType::kBfloat16, jk::ElementType::kBfloat16},
                {"float16", jk::ElementType::kFloat16, jk::ElementType::kFloat16},
                {"float32", jk::ElementType::kFloat32, jk::ElementType::kFloat32},
                {"bfloat16, dispatched as float8_e4m3fn (bytes as in bfloat16)", jk::ElementType::kBfloat16,
                 jk::ElementType::kFloat8E4m3fn}};
  for (const auto& [name, type, dispatch_type] : kTypes) {
    std::printf("%s\n", name);
    const int64_t row = shape.hidden * jk::ElementBytes(type);
    jk::ReportMemcpy(shape.max_tokens * shape.top_k * row, row);
    jk::ReportKernels(shape, type, dispatch_type, sizes[5], jk::kAlwaysCached);
    std::printf(" past the cache\n");
    jk::ReportKernels(shape, type, dispatch_type, sizes[5], 0);
  }
}
