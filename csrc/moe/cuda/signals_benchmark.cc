// How long the device and the host take to tell each other something, in CUDA graphs. One JSON object a line.
//
// exchange: from one that the host sees to the next one, of one rank and no rows. Between them are the host's answer,
//   the wait that it ends, the kernels that unpack and pack, and the next exchange's beginning. The host does
//   nothing else.
// floor: the same with kernels that do nothing but to post a number and to wait for the answer (benchmark_kernels.h):
//   three, launched as the others are, and one, which goes on for ever.
// watcher: from one call of a watcher's callback to the next, which a program bumps when it has seen what the callback
//   before has stored: store, the kernel that waits for it, the kernel that bumps, the engine's thread.
//
// signals_benchmark [--graphs G]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/engine/transfer_engine.h"
#include "csrc/kernels/cuda/benchmark_kernels.h"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::moe {
namespace {

using namespace kernels;        // NOLINT
using namespace kernels::cuda;  // NOLINT

constexpr int64_t kExchanges = 200;  // of a graph
constexpr int64_t kTimeoutNs = 20'000'000'000;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "signals_benchmark: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <typename T>
T* AllocateMapped() {
  void* memory = nullptr;
  Check(cudaHostAlloc(&memory, sizeof(T), cudaHostAllocMapped));
  return new (memory) T();
}

template <typename T>
T* OnDevice(T* mapped) {
  void* device = nullptr;
  Check(cudaHostGetDevicePointer(&device, mapped, 0));
  return static_cast<T*>(device);
}

template <typename T>
T* Allocate(int64_t count) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, count * sizeof(T)));
  Check(cudaMemset(memory, 0, count * sizeof(T)));
  return static_cast<T*>(memory);
}

void Report(const char* name, std::vector<int64_t>& ns) {
  std::sort(ns.begin(), ns.end());
  const auto at = [&](double share) {
    return static_cast<double>(ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))]) * 1e-3;
  };
  std::printf(
      "{\"case\": \"%s\", \"metric\": \"cycle\", \"unit\": \"us\", \"median\": %.2f, \"p99\": %.2f, \"p999\": %.2f, "
      "\"min\": %.2f, \"max\": %.2f, \"n\": %zu}\n",
      name, at(0.5), at(0.99), at(0.999), at(0), at(1), ns.size());
  std::fflush(stdout);
}

// A graph of that many launches.
cudaGraphExec_t Record(cudaStream_t stream, const std::function<void(int64_t)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int64_t i = 0; i < kExchanges; ++i) launch(i);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  return executable;
}

// One channel of one rank that reaches itself through the host, and a thread that answers its exchanges.
class Channel {
 public:
  Channel()
      : signals_(AllocateMapped<ChannelSignals>()),
        missing_(AllocateMapped<uint8_t>()),
        state_(Allocate<ChannelState>(1)),
        token_(Allocate<int32_t>(2)) {
    layout_.shape = {.hidden = 8};
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    send_.layout = receive_.layout = layout_;
    send_.route = {Allocate<int32_t>(1), Allocate<int32_t>(1)};
    receive_.route = {Allocate<int32_t>(1), Allocate<int32_t>(1), Allocate<int32_t>(1)};
    receive_.t_rows = 1;
    receive_.out = Allocate<float>(8);
    Check(cudaMemset(receive_.route.index, 0xff, sizeof(int32_t)));
    char* slots = Allocate<char>(2 * layout_.SlotBytes());
    void* table[2] = {slots, slots + layout_.SlotBytes()};
    const ChannelState state{.epoch = {.first_slot = slots}};
    Check(cudaMemcpy(state_, &state, sizeof(state), cudaMemcpyHostToDevice));
    send_.slots = Allocate<void*>(2);
    receive_.slots = send_.slots;
    Check(cudaMemcpy(const_cast<void**>(send_.slots), table, sizeof(table), cudaMemcpyHostToDevice));
    send_.message_bytes = Allocate<int64_t>(1);
    exchange_.channel = {.state = state_,
                         .signals = OnDevice(signals_),
                         .missing = OnDevice(missing_),
                         .peers = Allocate<ExchangePeer>(1),
                         .through_host = true,
                         .timeout_ns = kTimeoutNs};
    exchange_.layout = layout_;
    exchange_.kind = ExchangeKind::kCombine;
    exchange_.slots = send_.slots;
    exchange_.axis_rank = Allocate<int32_t>(1);
    exchange_.token = token_;
    exchange_.ticket = token_;
    exchange_.send_route = receive_.route;
    exchange_.receive_route = send_.route;
    exchange_.t_rows = 1;
  }

  // By an exchange.
  void TellByPost() {
    Send();
    exchange_.part = ExchangePart::kWhole;
    Check(Exchange(exchange_, stream_));
    Receive();
  }
  bool IsToldByPost(int64_t next) {
    return std::atomic_ref(signals_->posted.sequence).load(std::memory_order_acquire) == next;
  }

  // When the host was told of each exchange, ns.
  std::vector<int64_t> Run(void (Channel::*tell)(), bool (Channel::*is_told)(int64_t), int graphs) {
    cudaGraphExec_t executable = Record(stream_, [&](int64_t) { (this->*tell)(); });
    std::vector<int64_t> seen;
    std::atomic<bool> stop = false;
    std::thread host([&] {
      for (int64_t next = 1; next <= graphs * kExchanges; ++next) {
        while (!(this->*is_told)(next)) {
          if (stop) return;
        }
        seen.push_back(NowNs());
        std::atomic_ref(signals_->host.done).store(next, std::memory_order_release);
      }
    });
    for (int i = 0; i < graphs; ++i) Check(cudaGraphLaunch(executable, stream_));
    Check(cudaStreamSynchronize(stream_));
    stop = true;
    host.join();
    if (signals_->error.sequence != 0) {
      std::fprintf(stderr, "signals_benchmark: exchange %lld failed: %d, %lld\n",
                   static_cast<long long>(signals_->error.sequence), static_cast<int>(signals_->error.error),
                   static_cast<long long>(signals_->error.detail));
      std::exit(1);
    }
    return seen;
  }

  // By kernels that do nothing else.
  void TellByBareKernels() { Check(LaunchRoundTrip(bare(), stream_)); }
  void TellByOneKernel() {
    if (recorded_++ == 0) Check(LaunchRoundTrips(bare(), kExchanges, stream_));
  }

 private:
  LaunchOptions options() const {
    return {.stream = stream_,
            .channel = state_,
            .tell = {.state = state_,
                     .signals = exchange_.channel.signals,
                     .peers = exchange_.channel.peers,
                     .axis_rank = exchange_.axis_rank,
                     .ranks = 1,
                     .through_host = true}};
  }
  void Send() {
    exchange_.told = true;
    Check(CombineSend(send_, options()));
  }
  void Receive() { Check(CombineReceive(receive_, options())); }
  PingPong bare() const {
    ChannelSignals* signals = exchange_.channel.signals;
    return {&signals->posted.sequence, &signals->host.done, &state_->issued};
  }

  ChannelSignals* const signals_;
  uint8_t* const missing_;
  ChannelState* const state_;
  int32_t* const token_;
  SlotLayout layout_;
  CombineSendArgs send_;
  CombineReceiveArgs receive_;
  ExchangeArgs exchange_;
  cudaStream_t stream_ = nullptr;
  int64_t recorded_ = 0;
};

// When the callback of a watcher was called, ns: of an engine's thread, as programs have them.
std::vector<int64_t> RunWatcher(int graphs) {
  WatcherWord* word = AllocateMapped<WatcherWord>();
  int64_t* done = AllocateMapped<int64_t>();
  const PingPong words{nullptr, OnDevice(done), Allocate<int64_t>(1)};
  std::vector<uint64_t> values(kExchanges);
  std::iota(values.begin(), values.end(), 1);
  auto* values_on_device = Allocate<uint64_t>(kExchanges);
  Check(cudaMemcpy(values_on_device, values.data(), kExchanges * sizeof(uint64_t), cudaMemcpyHostToDevice));
  cudaStream_t stream;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraphExec_t executable = Record(stream, [&](int64_t i) {
    Check(Bump(OnDevice(word), values_on_device + i, stream));
    Check(LaunchAwait(words, stream));
  });
  std::vector<int64_t> called;
  called.reserve(graphs * kExchanges);
  const auto engine = TransferEngine::Create({}).value();
  const auto callback = [&](uint64_t, uint64_t) {
    called.push_back(NowNs());
    // release, with the acquire of the kernel that waits.
    std::atomic_ref(*done).store(static_cast<int64_t>(called.size()), std::memory_order_release);
  };
  const auto watcher = engine->Watch(0, callback, std::shared_ptr<uint64_t>(&word->value, [](uint64_t*) {})).value();
  for (int i = 0; i < graphs; ++i) Check(cudaGraphLaunch(executable, stream));
  Check(cudaStreamSynchronize(stream));
  return called;
}

// Cycles within a graph; the first graphs are for warming up.
std::vector<int64_t> Cycles(const std::vector<int64_t>& seen) {
  std::vector<int64_t> cycles;
  for (size_t i = 5 * kExchanges; i < seen.size(); ++i) {
    if (i % kExchanges != 0) cycles.push_back(seen[i] - seen[i - 1]);
  }
  return cycles;
}

int Main(int argc, char** argv) {
  int graphs = 200;
  if (argc == 3 && std::strcmp(argv[1], "--graphs") == 0) {
    graphs = std::atoi(argv[2]);
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: signals_benchmark [--graphs G]\n");
    return 2;
  }
  if (graphs < 6) {
    std::fprintf(stderr, "signals_benchmark: --graphs %d: must be at least 6, of which 5 are for warming up\n", graphs);
    return 2;
  }
  Check(LoadKernels());
  std::vector<int64_t> by_post = Cycles(Channel().Run(&Channel::TellByPost, &Channel::IsToldByPost, graphs));
  Report("exchange without rows", by_post);
  std::vector<int64_t> bare = Cycles(Channel().Run(&Channel::TellByBareKernels, &Channel::IsToldByPost, graphs));
  Report("exchange without rows, floor: three bare kernels", bare);
  std::vector<int64_t> one = Cycles(Channel().Run(&Channel::TellByOneKernel, &Channel::IsToldByPost, graphs));
  Report("exchange without rows, floor: one running kernel", one);
  std::vector<int64_t> by_watcher = Cycles(RunWatcher(graphs));
  Report("watcher, callback to callback", by_watcher);
  return 0;
}

}  // namespace
}  // namespace jax_fabric::moe

int main(int argc, char** argv) { return jax_fabric::moe::Main(argc, argv); }
