// How long the kernels of one rank take, each beside a copy of as many bytes.
//
// Everything runs in one CUDA graph: the caches are emptied, then the kernel runs on another routing than the time
// before. Its time is that of the device's global timer, from the beginning of the first block to the end of the last.
// "dispatch check" is the exchange kernel between send and receive where all messages are there already: what is left
// of it is to look at them, and to say that it is through.
//
// kernels_benchmark [--ranks N] [--experts E] [--tokens T] [--top-k K] [--hidden H] [--graphs G] [--fp8 0|1]
// prints one JSON object a line: case, metric, unit, median, p99, min, max, n, bytes, copy_us, ratio.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/cuda/benchmark_kernels.h"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int kVariants = 8;  // routings

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "kernels_benchmark: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* Allocate(int64_t count) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, std::max<int64_t>(1, count) * static_cast<int64_t>(sizeof(T))));
  return static_cast<T*>(memory);
}

template <typename T>
T* Upload(const std::vector<T>& values) {
  T* memory = Allocate<T>(static_cast<int64_t>(values.size()));
  Check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

template <typename T>
std::vector<T> Fetch(const T* memory, int64_t count) {
  std::vector<T> values(count);
  Check(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

// One routing of one rank: its dispatch there and back.
struct Variant {
  int32_t* experts;
  float* weights;
  SendRoute send;
  ReceiveRoute receive;
  void** slots_out;               // [N] messages of this rank
  const void** slots_in;          // [N] messages to it, of dispatch
  const void** slots_back;        // [N] of combine
  void* const* slots_of_channel;  // [2 N] slots_in for both parities
  const void* first_in;           // where the slots of each lie, one after the other
  const void* first_back;
  float* row_weights;
  int32_t* group_sizes;
  int64_t rows_out, entries_out, rows_in, entries_in;
};

struct Times {
  std::vector<double> us;
  double At(double share) {
    std::sort(us.begin(), us.end());
    return us[static_cast<size_t>(share * static_cast<double>(us.size() - 1))];
  }
};

class Benchmark {
 public:
  Benchmark(const SlotLayout& layout, int graphs) : layout_(layout), shape_(layout.shape), graphs_(graphs) {
    Check(cudaStreamCreateWithFlags(&options_.stream, cudaStreamNonBlocking));
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, 0));
    options_.multiprocessors = properties.multiProcessorCount;
    options_.workspace = Allocate<char>(WorkspaceBytes(layout));
    flush_ = Allocate<char>(kFlushBytes);
    Check(cudaMemset(flush_, 0, kFlushBytes));
    std::mt19937 random(1);
    std::vector<uint16_t> elements(int64_t{shape_.max_tokens} * shape_.hidden);
    for (uint16_t& element : elements) element = static_cast<uint16_t>(0x3f00 + random() % 256);  // bfloat16 near 1
    x_ = Upload(elements);
    out_ = Allocate<char>(int64_t{shape_.max_tokens} * shape_.hidden * 2);
    tokens_ = Allocate<char>(shape_.capacity * shape_.hidden * 2);
    y_ = Allocate<char>(shape_.capacity * shape_.hidden * 2);
    Check(cudaMemset(y_, 0x3c, shape_.capacity * shape_.hidden * 2));
    scales_ = Allocate<float>(shape_.capacity * layout.ScalesOfRow());
    message_bytes_ = Allocate<int64_t>(shape_.ranks);
    for (int v = 0; v < kVariants; ++v) MakeVariant(random);
    MakeChannel();
  }

  void Run() {
    const int64_t row = layout_.DispatchRowBytes(), back = layout_.CombineRowBytes();
    const int64_t x_bytes = int64_t{shape_.max_tokens} * shape_.hidden * 2;
    Report(
        "dispatch send", [&](const Variant& v) { return x_bytes + v.rows_out * row; },
        [&](const Variant& v, const LaunchOptions& options) { return DispatchSend(SendArgs(v), options); });
    Report(
        "dispatch check", [&](const Variant& v) { return 8 * (v.rows_in + v.entries_in) + HeadBytes(); },
        [&](const Variant& v, const LaunchOptions& options) { return CheckMessages(v, options); });
    if (const auto error = Fetch(channel_.state, 1)[0].error; error != SignalError::kNone) {
      std::fprintf(stderr, "kernels_benchmark: the exchange kernel found error %d\n", static_cast<int>(error));
      std::exit(1);
    }
    Report(
        "dispatch receive", [&](const Variant& v) { return (v.rows_in + v.entries_in) * row; },
        [&](const Variant& v, const LaunchOptions& options) { return DispatchReceive(ReceiveArgs(v), options); });
    Report(
        "combine send", [&](const Variant& v) { return v.entries_in * shape_.hidden * 2 + v.rows_in * back; },
        [&](const Variant& v, const LaunchOptions& options) { return CombineSend(CombineSendArgsOf(v), options); });
    Report(
        "combine receive", [&](const Variant& v) { return v.rows_out * back + x_bytes; },
        [&](const Variant& v, const LaunchOptions& options) {
          return CombineReceive(CombineReceiveArgsOf(v), options);
        });
  }

 private:
  using BytesOf = std::function<int64_t(const Variant&)>;
  using Launch = std::function<cudaError_t(const Variant&, const LaunchOptions&)>;

  std::vector<int32_t> RandomExperts(std::mt19937& random) const {
    std::vector<int32_t> all(shape_.experts), experts;
    for (int32_t e = 0; e < shape_.experts; ++e) all[e] = e;
    for (int32_t t = 0; t < shape_.max_tokens; ++t) {
      for (int32_t k = 0; k < shape_.top_k; ++k) std::swap(all[k], all[k + random() % (shape_.experts - k)]);
      experts.insert(experts.end(), all.begin(), all.begin() + shape_.top_k);
    }
    return experts;
  }

  void MakeVariant(std::mt19937& random) {
    const int64_t ranks = shape_.ranks, choices = int64_t{shape_.max_tokens} * shape_.top_k;
    Variant v;
    v.weights = Upload(std::vector<float>(choices, 0.125f));
    v.send = {Allocate<int32_t>(shape_.max_tokens * ranks), Allocate<int32_t>(choices),
              Allocate<int32_t>(shape_.MaxRounds())};
    v.receive = {Allocate<int32_t>(ranks * shape_.max_tokens * shape_.LocalTopK()),
                 Allocate<int32_t>(ranks * shape_.MaxRounds())};
    v.row_weights = Allocate<float>(shape_.capacity);
    v.group_sizes = Allocate<int32_t>(shape_.experts_per_rank);
    const auto slots = [&] {
      char* first = Allocate<char>(ranks * layout_.SlotBytes());
      std::vector<void*> all;
      for (int64_t r = 0; r < ranks; ++r) all.push_back(first + r * layout_.SlotBytes());
      return all;
    };
    std::vector<void*> out = slots(), in = slots(), back = slots();
    v.slots_out = Upload(out);
    v.slots_in = const_cast<const void**>(Upload(in));
    v.slots_back = const_cast<const void**>(Upload(back));
    std::vector<void*> both = in;
    both.insert(both.end(), in.begin(), in.end());
    v.slots_of_channel = Upload(both);
    v.first_in = in[0];
    v.first_back = back[0];
    // What every rank sends to this one, which is rank 0.
    for (int64_t s = 0; s < ranks; ++s) {
      std::vector<void*> targets = out;
      targets[0] = in[s];
      v.experts = Upload(RandomExperts(random));
      DispatchSendArgs args = SendArgs(v);
      args.slots = Upload(targets);
      Check(DispatchSend(args, options_));
      Check(cudaStreamSynchronize(options_.stream));
    }
    Check(DispatchReceive(ReceiveArgs(v), options_));
    v.experts = Upload(RandomExperts(random));
    Check(DispatchSend(SendArgs(v), options_));
    Check(cudaStreamSynchronize(options_.stream));
    v.rows_out = v.entries_out = v.rows_in = v.entries_in = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      MessageHeader header = Fetch(static_cast<const MessageHeader*>(out[r]), 1)[0];
      v.rows_out += header.rows, v.entries_out += header.expert_rows;
      // Rank r's sums for the rows that it got.
      header.kind = static_cast<uint16_t>(ExchangeKind::kCombine);
      header.payload_offset = static_cast<uint64_t>(layout_.PlainPayloadOffset());
      Check(cudaMemset(back[r], 0x3c, layout_.SlotBytes()));
      Check(cudaMemcpy(back[r], &header, sizeof(header), cudaMemcpyHostToDevice));
      header = Fetch(static_cast<const MessageHeader*>(in[r]), 1)[0];
      v.rows_in += header.rows, v.entries_in += header.expert_rows;
    }
    variants_.push_back(v);
  }

  // One whose next exchange is that of the messages, which all have come.
  void MakeChannel() {
    const int64_t ranks = shape_.ranks;
    fresh_state_ = Upload(
        std::vector<ChannelState>{{.issued = MessageStamp{}.sequence - 1,
                                   .finished = MessageStamp{}.sequence - 1,
                                   .epoch = {.flags = Upload(std::vector<int64_t>(ranks, MessageStamp{}.sequence))}}});
    channel_.state = Allocate<ChannelState>(1);
    void* signals = nullptr;
    Check(cudaHostAlloc(&signals, sizeof(ChannelSignals), cudaHostAllocMapped));
    channel_.signals = new (signals) ChannelSignals();
    int64_t* const flags_of_peers = Allocate<int64_t>(ranks);
    std::vector<ExchangePeer> peers(ranks);
    for (int64_t r = 0; r < ranks; ++r) peers[r].flag = flags_of_peers + r;
    channel_.peers = Upload(peers);
    channel_.expert_rows = Upload(std::vector<int64_t>(ranks, 0));
    channel_.timeout_ns = 1'000'000'000;
    zero_ = Upload(std::vector<int32_t>(1, 0));
    token_ = Allocate<int32_t>(1);
  }
  // Of all messages: header, and what they say about all ranks.
  int64_t HeadBytes() const { return shape_.ranks * layout_.RowMetaOffset(); }
  cudaError_t CheckMessages(const Variant& v, const LaunchOptions& options) {
    Check(
        cudaMemcpyAsync(channel_.state, fresh_state_, sizeof(ChannelState), cudaMemcpyDeviceToDevice, options.stream));
    ExchangeArgs args;
    args.channel = channel_;
    args.told = true;
    args.layout = layout_;
    args.slots = v.slots_of_channel;
    args.axis_rank = zero_;
    args.token = token_;
    args.times = options.times;
    return Exchange(args, options.stream);
  }

  DispatchSendArgs SendArgs(const Variant& v) const {
    return {.layout = layout_,
            .stamp = {},
            .t_rows = shape_.max_tokens,
            .x_type = ElementType::kBfloat16,
            .x = x_,
            .experts = v.experts,
            .weights = v.weights,
            .route = v.send,
            .slots = v.slots_out,
            .message_bytes = message_bytes_};
  }
  DispatchReceiveArgs ReceiveArgs(const Variant& v) const {
    return {.layout = layout_,
            .slots = v.slots_in,
            .tokens_type = layout_.dispatch_type,
            .tokens = tokens_,
            .scales = scales_,
            .weights = v.row_weights,
            .group_sizes = v.group_sizes,
            .route = v.receive};
  }
  CombineSendArgs CombineSendArgsOf(const Variant& v) const {
    return {.layout = layout_,
            .stamp = {},
            .y_type = ElementType::kBfloat16,
            .y = y_,
            .row_weights = v.row_weights,
            .route = v.receive,
            .slots = v.slots_out,
            .message_bytes = message_bytes_};
  }
  CombineReceiveArgs CombineReceiveArgsOf(const Variant& v) const {
    return {.layout = layout_,
            .slots = v.slots_back,
            .t_rows = shape_.max_tokens,
            .route = v.send,
            .out_type = ElementType::kBfloat16,
            .out = out_};
  }

  // Times of `launch` in a graph, over all variants, `graphs` times.
  Times Measure(const Launch& launch, int graphs) {
    KernelTimes* times = Allocate<KernelTimes>(kVariants);
    KernelTimes* fresh = Upload(std::vector<KernelTimes>(kVariants));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    Check(cudaStreamBeginCapture(options_.stream, cudaStreamCaptureModeThreadLocal));
    Check(cudaMemcpyAsync(times, fresh, kVariants * sizeof(KernelTimes), cudaMemcpyDeviceToDevice, options_.stream));
    for (int v = 0; v < kVariants; ++v) {
      Check(FlushCaches(flush_, kFlushBytes, options_.stream));
      LaunchOptions timed = options_;
      timed.times = times + v;
      Check(launch(variants_[v], timed));
    }
    Check(cudaStreamEndCapture(options_.stream, &graph));
    Check(cudaGraphInstantiate(&executable, graph, 0));
    Times all;
    for (int i = 0; i < graphs + 2; ++i) {
      Check(cudaGraphLaunch(executable, options_.stream));
      Check(cudaStreamSynchronize(options_.stream));
      if (i < 2) continue;
      for (const KernelTimes& time : Fetch(times, kVariants)) {
        all.us.push_back(static_cast<double>(time.duration_ns()) * 1e-3);
      }
    }
    Check(cudaGraphExecDestroy(executable));
    Check(cudaGraphDestroy(graph));
    return all;
  }

  // Single launches by events, caches as the launch before left them.
  Times MeasureByEvents(const Launch& launch) {
    cudaEvent_t begin, end;
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
    Times all;
    for (int i = 0; i < 25 * kVariants; ++i) {
      Check(FlushCaches(flush_, kFlushBytes, options_.stream));
      Check(cudaEventRecord(begin, options_.stream));
      Check(launch(variants_[i % kVariants], options_));
      Check(cudaEventRecord(end, options_.stream));
      Check(cudaStreamSynchronize(options_.stream));
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, begin, end));
      if (i >= kVariants) all.us.push_back(ms * 1e3);
    }
    return all;
  }

  void Report(const char* name, const BytesOf& bytes_of, const Launch& launch) {
    int64_t bytes = 0;
    for (const Variant& v : variants_) bytes += bytes_of(v) / kVariants;
    const int64_t half = AlignUp(bytes / 2, 16);
    Times kernel = Measure(launch, graphs_);
    Times copy = Measure([&](const Variant&, const LaunchOptions& options) { return Copy(y_, tokens_, half, options); },
                         graphs_);
    Times events = MeasureByEvents(launch);
    std::printf(
        "{\"case\": \"%s\", \"ranks\": %d, \"experts\": %d, \"tokens\": %d, \"top_k\": %d, \"hidden\": %d, \"type\": "
        "\"%s\", \"metric\": \"kernel time\", \"unit\": \"us\", \"median\": %.2f, \"p99\": %.2f, \"min\": %.2f, "
        "\"max\": "
        "%.2f, \"n\": %zu, \"bytes\": %lld, \"copy_us\": %.2f, \"ratio\": %.3f, \"event_us\": %.2f, \"GB_s\": %.0f}\n",
        name, shape_.ranks, shape_.experts, shape_.max_tokens, shape_.top_k, shape_.hidden,
        layout_.quantised ? "float8_e4m3fn" : "bfloat16", kernel.At(0.5), kernel.At(0.99), kernel.At(0), kernel.At(1),
        kernel.us.size(), static_cast<long long>(bytes), copy.At(0.5), copy.At(0.5) / kernel.At(0.5), events.At(0.5),
        static_cast<double>(bytes) / kernel.At(0.5) * 1e-3);
    std::fflush(stdout);
  }

  const SlotLayout layout_;
  const MoeShape& shape_ = layout_.shape;
  const int graphs_;
  LaunchOptions options_;
  char* flush_;
  uint16_t* x_;
  char* out_;
  char* tokens_;
  char* y_;
  float* scales_;
  int64_t* message_bytes_;
  ExchangeChannel channel_;
  ChannelState* fresh_state_;
  int32_t* zero_;
  int32_t* token_;
  std::vector<Variant> variants_;
};

int Main(int argc, char** argv) {
  std::map<std::string, int> flags = {{"--ranks", 64},    {"--experts", 256}, {"--tokens", 128}, {"--top-k", 8},
                                      {"--hidden", 7168}, {"--graphs", 130},  {"--fp8", 1}};
  for (int i = 1; i < argc; i += 2) {
    if (flags.find(argv[i]) == flags.end() || i + 1 == argc) {
      std::fprintf(stderr, "kernels_benchmark: %s: not a flag, or without a number\n", argv[i]);
      return 2;
    }
    flags[argv[i]] = std::atoi(argv[i + 1]);
  }
  SlotLayout layout;
  MoeShape& shape = layout.shape;
  shape.ranks = flags["--ranks"];
  shape.experts = flags["--experts"];
  shape.experts_per_rank = (shape.experts + shape.ranks - 1) / shape.ranks;
  shape.max_tokens = flags["--tokens"];
  shape.top_k = flags["--top-k"];
  shape.hidden = flags["--hidden"];
  // Twice what comes on the average.
  shape.capacity = int64_t{2} * shape.max_tokens * shape.top_k;
  layout.quantised = flags["--fp8"] != 0;
  layout.dispatch_type = layout.quantised ? ElementType::kFloat8E4m3fn : ElementType::kBfloat16;
  layout.combine_type = layout.redispatch_type = ElementType::kBfloat16;
  Check(LoadKernels());
  Benchmark(layout, flags["--graphs"]).Run();
  return 0;
}

}  // namespace
}  // namespace jax_fabric::kernels::cuda

int main(int argc, char** argv) { return jax_fabric::kernels::cuda::Main(argc, argv); }
