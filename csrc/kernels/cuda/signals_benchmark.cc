// How long the device and the host take to tell each other something, in CUDA graphs. One JSON object a line.
//
// round trip: from a post that the proxy sees to the next one; between them are the proxy's answer, the wait that it
//   ends, and the next exchange's ticket and post. The proxy does nothing else.
// watcher: the same with a watcher's word, whose callback answers: bump, poll, callback, store, wait, next bump.
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
#include <new>
#include <thread>
#include <vector>

#include "csrc/kernels/cuda/signal_kernels.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {
namespace {

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

// One channel, and a thread that answers its exchanges.
class Channel {
 public:
  Channel()
      : signals_(AllocateMapped<ChannelSignals>()),
        abort_(AllocateMapped<AbortWord>()),
        word_(AllocateMapped<WatcherWord>()),
        state_(Allocate<ChannelState>(1)),
        token_(Allocate<int32_t>(2)) {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  // By a post, which the host finds in the ring.
  void TellByPost() {
    Check(Post({.signals = OnDevice(signals_), .state = state_, .ticket = token_, .record = {}}, stream_));
  }
  bool IsToldByPost(int64_t next) {
    return std::atomic_ref(signals_->RecordOf(next).sequence).load(std::memory_order_acquire) == next;
  }

  // By a watcher's word: the token, whose upper half is 0. The host calls back.
  void TellByWord() { Check(Bump(OnDevice(word_), reinterpret_cast<const uint64_t*>(token_), stream_)); }
  bool IsToldByWord(int64_t) {
    const uint64_t now = std::atomic_ref(word_->value).load(std::memory_order_acquire);
    if (now == last_) return false;
    callback_(last_, now);
    last_ = now;
    return true;
  }

  // When the host was told of each exchange, ns.
  std::vector<int64_t> Run(void (Channel::*tell)(), bool (Channel::*is_told)(int64_t), int graphs) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int64_t i = 0; i < kExchanges; ++i) {
      Check(Ticket(state_, token_, stream_));
      (this->*tell)();
      Check(Wait({.signals = OnDevice(signals_),
                  .state = state_,
                  .abort = OnDevice(abort_),
                  .ticket = token_,
                  .timeout_ns = kTimeoutNs},
                 stream_));
    }
    Check(cudaStreamEndCapture(stream_, &graph));
    Check(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<int64_t> seen;
    std::atomic<bool> stop = false;
    std::thread host([&] {
      for (int64_t next = 1; next <= graphs * kExchanges; ++next) {
        while (!(this->*is_told)(next)) {
          if (stop) return;
        }
        seen.push_back(NowNs());
        std::atomic_ref(signals_->done.sequence).store(next, std::memory_order_release);
      }
    });
    for (int i = 0; i < graphs; ++i) Check(cudaGraphLaunch(executable, stream_));
    Check(cudaStreamSynchronize(stream_));
    stop = true;
    host.join();
    if (signals_->error.sequence != 0) {
      std::fprintf(stderr, "signals_benchmark: exchange %lld failed\n",
                   static_cast<long long>(signals_->error.sequence));
      std::exit(1);
    }
    return seen;
  }

 private:
  ChannelSignals* const signals_;
  AbortWord* const abort_;
  WatcherWord* const word_;
  ChannelState* const state_;
  int32_t* const token_;
  cudaStream_t stream_ = nullptr;
  uint64_t last_ = 0;
  std::atomic<uint64_t> called_with_ = 0;
  const std::function<void(uint64_t, uint64_t)> callback_ = [this](uint64_t, uint64_t now) { called_with_ = now; };
};

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
  Check(LoadSignalKernels());
  std::vector<int64_t> by_post = Cycles(Channel().Run(&Channel::TellByPost, &Channel::IsToldByPost, graphs));
  Report("round trip through the proxy", by_post);
  std::vector<int64_t> by_word = Cycles(Channel().Run(&Channel::TellByWord, &Channel::IsToldByWord, graphs));
  Report("watcher, bump to bump", by_word);
  return 0;
}

}  // namespace
}  // namespace jax_fabric::kernels::cuda

int main(int argc, char** argv) { return jax_fabric::kernels::cuda::Main(argc, argv); }
