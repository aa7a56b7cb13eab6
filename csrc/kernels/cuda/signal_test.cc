// The signal kernels against a host thread that does what a proxy does. Needs a GPU.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "csrc/kernels/cuda/benchmark_kernels.h"
#include "csrc/kernels/cuda/signal_kernels.h"
#include "csrc/kernels/signals.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::cuda {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr auto kPatience = std::chrono::seconds(20);

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// One object in host memory that the device has mapped.
template <typename T>
class Mapped {
 public:
  explicit Mapped(int64_t count = 1) {
    void* host = nullptr;
    Check(cudaHostAlloc(&host, count * sizeof(T), cudaHostAllocMapped));
    host_ = static_cast<T*>(host);
    for (int64_t i = 0; i < count; ++i) new (host_ + i) T();
    void* device = nullptr;
    Check(cudaHostGetDevicePointer(&device, host, 0));
    device_ = static_cast<T*>(device);
  }
  ~Mapped() { cudaFreeHost(host_); }
  T* operator->() const { return host_; }
  T& operator[](int64_t i) const { return host_[i]; }
  T* device() const { return device_; }

 private:
  T* host_;
  T* device_;
};

class SignalTest : public ::testing::Test {
 protected:
  SignalTest() {
    Check(LoadSignalKernels());
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    state_ = Allocate<ChannelState>(1);
    token_ = Allocate<int32_t>(1);
  }

  ~SignalTest() override {
    stop_ = true;
    if (proxy_.joinable()) proxy_.join();
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (void* memory : memory_) cudaFree(memory);
    cudaStreamDestroy(stream_);
  }

  template <typename T>
  T* Allocate(int64_t count) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, count * sizeof(T)));
    Check(cudaMemset(memory, 0, count * sizeof(T)));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }

  // Answers every exchange from the first one on: act(record), then done.
  void StartProxy(std::function<void(const TriggerRecord&)> act = [](const TriggerRecord&) {}) {
    proxy_ = std::thread([this, act] {
      for (int64_t next = 1; !stop_; ++next) {
        TriggerRecord& record = signals_->RecordOf(next);
        // Acquires what the post kernel released.
        while (std::atomic_ref(record.sequence).load(std::memory_order_acquire) != next) {
          if (stop_) return;
        }
        seen_.push_back(next);
        act(record);
        std::atomic_ref(signals_->done.sequence).store(next, std::memory_order_release);
      }
    });
  }

  // Ends the proxy when it has answered so many.
  std::vector<int64_t> Seen(size_t count) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (Done() < static_cast<int64_t>(count) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    stop_ = true;
    proxy_.join();
    return seen_;
  }

  PostArgs PostOf(uint64_t argument = 0) const {
    PostArgs args{.signals = signals_.device(), .state = state_, .ticket = token_, .record = {}};
    args.record.kind = 2;
    args.record.arguments[0] = argument;
    return args;
  }
  WaitArgs WaitOf(int64_t timeout_ns = 20 * kSecondNs) const {
    return {.signals = signals_.device(),
            .state = state_,
            .abort = abort_.device(),
            .ticket = token_,
            .timeout_ns = timeout_ns};
  }
  void SetToken(int32_t value) {
    Check(cudaMemcpyAsync(token_, &value, sizeof(value), cudaMemcpyHostToDevice, stream_));
    Check(cudaStreamSynchronize(stream_));
  }
  int64_t Done() const { return std::atomic_ref(signals_->done.sequence).load(std::memory_order_acquire); }
  int64_t FailedSequence() const { return std::atomic_ref(signals_->error.sequence).load(std::memory_order_acquire); }
  // Of the stream's work so far.
  double SecondsToFinish() {
    const auto begin = std::chrono::steady_clock::now();
    Check(cudaStreamSynchronize(stream_));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Mapped<ChannelSignals> signals_;
  Mapped<AbortWord> abort_;
  cudaStream_t stream_ = nullptr;
  ChannelState* state_ = nullptr;
  int32_t* token_ = nullptr;
  std::vector<void*> memory_;
  std::thread proxy_;
  std::atomic<bool> stop_ = false;
  std::vector<int64_t> seen_;
};

std::vector<int64_t> Counted(int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 1; i <= count; ++i) numbers.push_back(i);
  return numbers;
}

TEST_F(SignalTest, EveryExchangeIsAnsweredOnce) {
  StartProxy([&](const TriggerRecord& record) { EXPECT_EQ(record.arguments[0], 77u); });
  for (int i = 0; i < 1000; ++i) {
    Check(Ticket(state_, token_, stream_));
    Check(Post(PostOf(77), stream_));
    Check(Wait(WaitOf(), stream_));
  }
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(Seen(1000), Counted(1000));
  EXPECT_EQ(FailedSequence(), 0);
}

TEST_F(SignalTest, GraphsThatAreReplayed) {
  StartProxy();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 10; ++i) {
    Check(Ticket(state_, token_, stream_));
    Check(Post(PostOf(), stream_));
    Check(Wait(WaitOf(), stream_));
  }
  Check(cudaStreamEndCapture(stream_, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 100; ++i) Check(cudaGraphLaunch(executable, stream_));
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(Seen(1000), Counted(1000));
  EXPECT_EQ(FailedSequence(), 0);
  Check(cudaGraphExecDestroy(executable));
  Check(cudaGraphDestroy(graph));
}

// XLA may run a call twice.
TEST_F(SignalTest, RepeatsSayNothing) {
  StartProxy();
  for (int i = 0; i < 100; ++i) {
    Check(Ticket(state_, token_, stream_));
    Check(Post(PostOf(), stream_));
    Check(Post(PostOf(), stream_));
    Check(Wait(WaitOf(), stream_));
    Check(Post(PostOf(), stream_));
    Check(Wait(WaitOf(), stream_));
  }
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(Seen(100), Counted(100));
  EXPECT_EQ(FailedSequence(), 0);
}

TEST_F(SignalTest, RepeatsOfWhatIsOverAreStale) {
  StartProxy();
  for (int i = 0; i < 3; ++i) {
    Check(Ticket(state_, token_, stream_));
    Check(Post(PostOf(), stream_));
    Check(Wait(WaitOf(), stream_));
  }
  SetToken(2);
  Check(Post(PostOf(), stream_));
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(FailedSequence(), 0) << "the slots of 2 are still its own";
  SetToken(1);
  Check(Post(PostOf(), stream_));
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(FailedSequence(), 1);
  EXPECT_EQ(signals_->error.error, SignalError::kStale);
  EXPECT_EQ(Seen(3), Counted(3));
}

// Nobody answers: one deadline for all waits of the channel.
TEST_F(SignalTest, DeadlineEndsAllWaits) {
  for (int i = 0; i < 20; ++i) {
    Check(Ticket(state_, token_, stream_));
    Check(Post(PostOf(), stream_));
    Check(Wait(WaitOf(kSecondNs / 5), stream_));
  }
  const double seconds = SecondsToFinish();
  EXPECT_GE(seconds, 0.15);
  EXPECT_LT(seconds, 2.0) << "not one deadline for each";
  EXPECT_EQ(FailedSequence(), 1);
  EXPECT_EQ(signals_->error.error, SignalError::kDeadline);
}

TEST_F(SignalTest, AbortEndsWaits) {
  Check(Ticket(state_, token_, stream_));
  Check(Post(PostOf(), stream_));
  Check(Wait(WaitOf(), stream_));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  std::atomic_ref(abort_->value).store(1, std::memory_order_release);
  EXPECT_LT(SecondsToFinish(), 5.0);
  EXPECT_EQ(FailedSequence(), 1);
  EXPECT_EQ(signals_->error.error, SignalError::kAborted);
}

// What kernels stored before a post is there when the host sees it, and what the host stored before it says done is
// there behind the wait: payload both ways through host memory, odd sizes, another value in every round.
TEST_F(SignalTest, PayloadComesBeforeItsSignal) {
  constexpr int64_t kWords = 16 << 10;
  constexpr int kRounds = 2000;
  Mapped<uint64_t> out(kWords), in(kWords);
  uint64_t* source = Allocate<uint64_t>(kWords * 4);
  uint64_t* sink = Allocate<uint64_t>(kWords);
  std::vector<uint64_t> values(kWords * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i * 0x9e3779b97f4a7c15u;
  Check(cudaMemcpy(source, values.data(), values.size() * 8, cudaMemcpyHostToDevice));
  std::atomic<int64_t> wrong = 0;
  const auto words_of = [](int64_t round) { return 2 + round * 2654435761 % (kWords / 2 - 2) * 2; };
  StartProxy([&](const TriggerRecord& record) {
    const int64_t round = record.sequence, words = words_of(round);
    const uint64_t* expected = values.data() + (round % 4) * kWords;
    for (int64_t i = 0; i < words; ++i) {
      wrong += out[i] != expected[i];
      in[i] = out[i] + 1;
    }
  });
  const LaunchOptions options{.stream = stream_};
  for (int64_t round = 1; round <= kRounds; ++round) {
    const int64_t bytes = words_of(round) * 8;
    Check(Ticket(state_, token_, stream_));
    Check(Copy(out.device(), source + (round % 4) * kWords, bytes, options));
    Check(Post(PostOf(), stream_));
    Check(Wait(WaitOf(), stream_));
    Check(Copy(sink, in.device(), bytes, options));
    if (round % 100 != 0) continue;
    std::vector<uint64_t> got(words_of(round));
    Check(cudaMemcpyAsync(got.data(), sink, bytes, cudaMemcpyDeviceToHost, stream_));
    Check(cudaStreamSynchronize(stream_));
    for (int64_t i = 0; i < words_of(round); ++i) wrong += got[i] != values[(round % 4) * kWords + i] + 1;
  }
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(Seen(kRounds).size(), size_t{kRounds});
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(FailedSequence(), 0);
}

TEST_F(SignalTest, WatchersSeeRisingValues) {
  Mapped<WatcherWord> word;
  uint64_t* values = Allocate<uint64_t>(2000);
  std::vector<uint64_t> numbers;
  for (uint64_t i = 1; i <= 2000; ++i) numbers.push_back(i);
  Check(cudaMemcpy(values, numbers.data(), numbers.size() * 8, cudaMemcpyHostToDevice));
  std::vector<uint64_t> seen;
  std::thread watcher([&] {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    uint64_t last = 0;
    while (last < 2000 && std::chrono::steady_clock::now() < end) {
      const uint64_t value = std::atomic_ref(word->value).load(std::memory_order_acquire);
      if (value != last) seen.push_back(last = value);
    }
  });
  for (int i = 0; i < 2000; ++i) Check(Bump(word.device(), values + i, stream_));
  Check(cudaStreamSynchronize(stream_));
  watcher.join();
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), 2000u);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GT(seen[i], seen[i - 1]);
}

}  // namespace
}  // namespace jax_fabric::kernels::cuda
