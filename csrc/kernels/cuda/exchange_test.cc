// The exchange kernel against messages of the CPU's kernels and a host that says what a proxy says. Needs a GPU.
#include "csrc/kernels/cuda/exchange.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/empty_message.h"
#include "csrc/kernels/message_fault.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::cuda {
namespace {

using testing::World;

constexpr int64_t kSecondNs = 1'000'000'000;

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// A channel of rank 0 among three ranks, whose slots hold the messages of a dispatch.
class ExchangeTest : public ::testing::Test {
 protected:
  explicit ExchangeTest(int32_t max_tokens = 9)
      : world_({.ranks = 3, .experts = 7, .max_tokens = max_tokens, .top_k = 3, .hidden = 8}, 5) {
    world_.SendDispatch(0);
    layout_ = world_.rank(0).layout;
    Check(LoadKernels());
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    signals_ = Mapped<ChannelSignals>(1);
    missing_ = Mapped<uint8_t>(ranks());
    state_ = Allocate<ChannelState>(1);
    flags_ = Allocate<int64_t>(ranks());
    other_flags_ = Allocate<int64_t>(ranks());
    peers_ = Allocate<ExchangePeer>(ranks());
    slots_ = Allocate<char>(2 * ranks() * layout_.SlotBytes());
    output_ = Allocate<float>(kOutputs);
    token_ = Allocate<int32_t>(1);
    std::vector<void*> table;
    for (int32_t i = 0; i < 2 * ranks(); ++i) table.push_back(slots_ + i * layout_.SlotBytes());
    args_.slots = Upload(table);
    args_.channel = {.state = state_,
                     .signals = signals_,
                     .missing = missing_,
                     .peers = peers_,
                     .expert_rows = Allocate<int64_t>(ranks()),
                     .timeout_ns = kSecondNs / 5};
    args_.layout = layout_;
    args_.stamp = world_.Stamp(0);
    args_.axis_rank = Allocate<int32_t>(1);
    args_.ticket = args_.token = token_;
    args_.outputs[0] = {output_, kOutputs * 4, 0x7fc00000};
    args_.output_count = 1;
    for (int32_t source = 0; source < ranks(); ++source) SetMessage(source, world_.Slot(0, source));
    Reset();
  }
  ~ExchangeTest() override {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (void* memory : memory_) cudaFree(memory);
    for (void* memory : mapped_) cudaFreeHost(memory);
    cudaStreamDestroy(stream_);
  }

  static constexpr int64_t kOutputs = 1000;
  int32_t ranks() const { return layout_.shape.ranks; }
  int64_t sequence() const { return world_.Stamp(0).sequence; }

  // Unified addressing: the same address on the device.
  template <typename T>
  T* Mapped(int64_t count) {
    void* memory = nullptr;
    Check(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped));
    std::memset(memory, 0, count * sizeof(T));
    mapped_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <typename T>
  T* Allocate(int64_t count) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, count * sizeof(T)));
    Check(cudaMemset(memory, 0, count * sizeof(T)));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* memory = Allocate<T>(values.size());
    Check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
  }
  template <typename T>
  void Set(T* to, const std::vector<T>& values) {
    Check(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  void SetMessage(int32_t source, const void* message) {
    const int64_t slot = (sequence() & 1) * ranks() + source;
    Check(cudaMemcpy(slots_ + slot * layout_.SlotBytes(), message, layout_.SlotBytes(), cudaMemcpyHostToDevice));
  }

  ChannelEpoch Epoch() const {
    const MessageStamp stamp = world_.Stamp(0);
    return {.incarnation = stamp.incarnation, .membership_epoch = stamp.membership_epoch, .flags = flags_};
  }
  // The next exchange is that of the messages, and all of them are here.
  void Reset() {
    *signals_ = ChannelSignals{};
    std::memset(missing_, 0, ranks());
    Set(state_, {ChannelState{.issued = sequence() - 1, .finished = sequence() - 1, .epoch = Epoch()}});
    Set(flags_, {sequence(), sequence(), sequence()});
    std::vector<ExchangePeer> peers;
    for (int32_t r = 0; r < ranks(); ++r) {
      peers.push_back({.flag = other_flags_ + r, .incarnation = world_.Stamp(r).incarnation});
    }
    Set(other_flags_, {int64_t{0}, int64_t{0}, int64_t{0}});
    Set(peers_, peers);
    Set(output_, std::vector<float>(kOutputs, 1.0f));
  }
  // Seconds that it took.
  double Run() {
    const auto begin = std::chrono::steady_clock::now();
    Check(Exchange(args_, stream_));
    Check(cudaStreamSynchronize(stream_));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  SignalError error() const {
    return std::atomic_ref(signals_->error.sequence).load(std::memory_order_acquire) == 0 ? SignalError::kNone
                                                                                          : signals_->error.error;
  }
  int64_t refused() const { return std::atomic_ref(signals_->refused.count).load(std::memory_order_acquire); }
  // All outputs are NaN, or none is.
  bool OutputsAreFilled() {
    std::vector<float> values(kOutputs);
    EXPECT_EQ(cudaMemcpy(values.data(), output_, kOutputs * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    int64_t filled = 0;
    for (const float value : values) filled += value != value;
    EXPECT_TRUE(filled == 0 || filled == kOutputs) << filled;
    return filled != 0;
  }
  template <typename T>
  T Get(const T* from) {
    T value;
    EXPECT_EQ(cudaMemcpy(&value, from, sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }

  World world_;
  SlotLayout layout_;
  cudaStream_t stream_ = nullptr;
  ChannelSignals* signals_ = nullptr;
  uint8_t* missing_ = nullptr;
  ChannelState* state_ = nullptr;
  int64_t* flags_ = nullptr;
  int64_t* other_flags_ = nullptr;  // of the peers, for this rank
  ExchangePeer* peers_ = nullptr;
  char* slots_ = nullptr;
  float* output_ = nullptr;
  int32_t* token_ = nullptr;
  ExchangeArgs args_;
  std::vector<void*> memory_, mapped_;
};

TEST_F(ExchangeTest, TellsPeersAndGoesOn) {
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_FALSE(OutputsAreFilled());
  for (int32_t r = 0; r < ranks(); ++r) EXPECT_EQ(Get(other_flags_ + r), sequence());
  EXPECT_EQ(Get(state_).issued, sequence());
  EXPECT_EQ(Get(state_).finished, sequence());
  EXPECT_EQ(Get(token_), sequence());
  EXPECT_EQ(signals_->posted.sequence, 0) << "nothing goes through the host";
}

// Whose rows fit into what the kernel reads of a message at once, do not, and are so many that it takes more threads.
class ExchangeOfTokensTest : public ExchangeTest, public ::testing::WithParamInterface<int32_t> {
 protected:
  ExchangeOfTokensTest() : ExchangeTest(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Tokens, ExchangeOfTokensTest, ::testing::Values(9, 400, 2000));

// One word of a message is another one: the device refuses what the CPU refuses, and the other way round.
TEST_P(ExchangeOfTokensTest, RefusesWhatTheCpuRefuses) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> message(layout_.SlotBytes());
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::memcpy(message.data(), world_.Slot(0, 1), message.size());
    const auto& header = *reinterpret_cast<const MessageHeader*>(message.data());
    auto* words = reinterpret_cast<uint32_t*>(message.data());
    uint32_t& word = words[random() % (header.payload_offset / 4)];
    word = random() % 2 == 0 ? word + static_cast<uint32_t>(random() % 3) - 1 : static_cast<uint32_t>(random());
    const char* fault = CheckMessage(layout_, message.data(), ExchangeKind::kDispatch, world_.Stamp(1), 1);
    Reset();
    SetMessage(1, message.data());
    Run();
    ASSERT_EQ(error() == SignalError::kMessage, fault != nullptr) << (fault == nullptr ? "accepted" : fault);
    ASSERT_EQ(OutputsAreFilled(), fault != nullptr);
    if (fault == nullptr) continue;
    ++refused;
    EXPECT_EQ(signals_->error.source, 1u);
    EXPECT_NE(TextOf(static_cast<MessageFault>(signals_->error.detail)), nullptr);
  }
  EXPECT_GT(refused, 500);
}

TEST_F(ExchangeTest, OneDeadlineForAllWaits) {
  Set(flags_ + 1, {sequence() - 1});
  double seconds = Run();
  EXPECT_GE(seconds, 0.19);
  EXPECT_EQ(error(), SignalError::kDeadline);
  EXPECT_EQ(signals_->error.source, 1u);
  EXPECT_EQ(missing_[0], 0);
  EXPECT_EQ(missing_[1], 1);
  EXPECT_EQ(missing_[2], 0);
  EXPECT_TRUE(OutputsAreFilled());
  Set(output_, std::vector<float>(kOutputs, 1.0f));
  seconds = 0;
  for (int i = 0; i < 20; ++i) seconds += Run();
  EXPECT_LT(seconds, 0.15);
  EXPECT_TRUE(OutputsAreFilled());
}

TEST_F(ExchangeTest, TheHostEndsWaits) {
  Set(flags_ + 2, {sequence() - 1});
  args_.channel.timeout_ns = 60 * kSecondNs;
  std::atomic_ref(signals_->host.stop).store(1, std::memory_order_release);
  EXPECT_LT(Run(), 10.0);
  EXPECT_EQ(error(), SignalError::kStopped);
}

TEST_F(ExchangeTest, TheHostSaysWhatIsHere) {
  Set(&peers_[2].flag, {static_cast<int64_t*>(nullptr)});
  args_.channel.through_host = true;
  std::atomic_ref(signals_->host.done).store(sequence(), std::memory_order_release);
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_EQ(std::atomic_ref(signals_->posted.sequence).load(std::memory_order_acquire), sequence());
  EXPECT_EQ(Get(other_flags_ + 1), sequence());
  EXPECT_EQ(Get(other_flags_ + 2), 0);
}

// As it is where the host stores into the device's memory (csrc/moe/cuda/gdrcopy).
TEST_F(ExchangeTest, TheHostSaysItInTheDevicesMemory) {
  auto* host = Allocate<ChannelSignals::HostLine>(1);
  args_.channel.host = host;
  Set(&peers_[2].flag, {static_cast<int64_t*>(nullptr)});
  args_.channel.through_host = true;
  Set(host, {ChannelSignals::HostLine{.done = sequence()}});
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_EQ(signals_->host.done, 0);
  Reset();
  Set(&peers_[2].flag, {static_cast<int64_t*>(nullptr)});
  args_.channel.timeout_ns = 60 * kSecondNs;
  Set(host, {ChannelSignals::HostLine{.done = sequence() - 1, .stop = 1}});
  EXPECT_LT(Run(), 10.0);
  EXPECT_EQ(error(), SignalError::kStopped);
}

// Nothing is received, in no round of the call, and the channel is as it was before.
TEST_F(ExchangeTest, AHalfThatIsNotDueIsRefused) {
  args_.part = ExchangePart::kBegin;
  Run();
  args_.part = ExchangePart::kFinish;
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_EQ(refused(), 0);
  Run();
  EXPECT_EQ(refused(), 1);
  EXPECT_EQ(signals_->refused.ticket, sequence());
  EXPECT_TRUE(OutputsAreFilled());
  Set(output_, std::vector<float>(kOutputs, 1.0f));
  args_.part = ExchangePart::kWhole;
  args_.round = 1;
  Run();
  EXPECT_TRUE(OutputsAreFilled());
  EXPECT_EQ(refused(), 1);
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_EQ(Get(state_).issued, sequence());
  EXPECT_EQ(Get(state_).finished, sequence());
  EXPECT_NE(Get(state_).refused, 0u);
  // Another ticket than that of the exchange which is begun: that one can still be ended.
  args_.round = 0;
  Reset();
  args_.part = ExchangePart::kBegin;
  Run();
  args_.part = ExchangePart::kFinish;
  Set(token_, {static_cast<int32_t>(sequence()) - 1});
  Run();
  EXPECT_EQ(refused(), 1);
  Set(token_, {static_cast<int32_t>(sequence())});
  Set(output_, std::vector<float>(kOutputs, 1.0f));
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_FALSE(OutputsAreFilled());
  EXPECT_EQ(Get(state_).finished, sequence());
  EXPECT_EQ(Get(state_).refused, 0u);
}

TEST_F(ExchangeTest, HalvesMustAlternate) {
  args_.part = ExchangePart::kBegin;
  Run();
  Run();
  EXPECT_EQ(error(), SignalError::kNotDone);
}

// A send kernel tells the peers when all its blocks are through, and nobody where the program is on another rank.
TEST_F(ExchangeTest, TheSendKernelTells) {
  CombineSendArgs send;
  send.layout = layout_;
  send.layout.shape.hidden = 8192;  // several blocks
  send.y = Allocate<float>(send.layout.shape.hidden * layout_.shape.capacity);
  std::vector<int32_t> rows(ranks() * layout_.shape.MaxRounds(), 1);
  send.route = {Allocate<int32_t>(int64_t{ranks()} * layout_.shape.max_tokens * layout_.shape.LocalTopK()),
                Upload(rows)};
  char* slots = Allocate<char>(2 * ranks() * send.layout.SlotBytes());
  std::vector<void*> table;
  for (int32_t i = 0; i < 2 * ranks(); ++i) table.push_back(slots + i * send.layout.SlotBytes());
  send.slots = Upload(table);
  send.message_bytes = Allocate<int64_t>(ranks());
  int32_t* axis_rank = Allocate<int32_t>(1);
  LaunchOptions options;
  options.stream = stream_;
  options.channel = state_;
  options.tell = {.state = state_,
                  .signals = signals_,
                  .peers = peers_,
                  .axis_rank = axis_rank,
                  .ranks = ranks(),
                  .through_host = true};
  const auto run = [&] {
    Check(CombineSend(send, options));
    Check(cudaStreamSynchronize(stream_));
  };
  Set(axis_rank, {1});
  run();
  for (int32_t r = 0; r < ranks(); ++r) EXPECT_EQ(Get(other_flags_ + r), 0);
  EXPECT_EQ(signals_->posted.sequence, 0);
  Set(axis_rank, {0});
  for (int i = 0; i < 3; ++i) {
    run();
    EXPECT_EQ(Get(state_).sent_blocks, 0u);
    for (int32_t r = 0; r < ranks(); ++r) EXPECT_EQ(Get(other_flags_ + r), sequence());
    EXPECT_EQ(signals_->posted.sequence, sequence());
    Set(other_flags_, {int64_t{0}, int64_t{0}, int64_t{0}});
    signals_->posted.sequence = 0;
  }
  // The exchange kernel does not do it again, and goes on.
  args_.told = true;
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_FALSE(OutputsAreFilled());
  for (int32_t r = 0; r < ranks(); ++r) EXPECT_EQ(Get(other_flags_ + r), 0);
  EXPECT_EQ(Get(state_).finished, sequence());
}

// Nobody waits for a rank that takes no part, and its slot holds what the CPU's kernels would find there.
TEST_F(ExchangeTest, AnAbsentRank) {
  Set(peers_ + 2, {ExchangePeer{.absent = true}});
  Set(flags_ + 2, {sequence() - 1});
  std::vector<char> message(layout_.SlotBytes(), 0x5a), wanted(layout_.SlotBytes(), 0x5a), found(layout_.SlotBytes());
  SetMessage(2, message.data());
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_EQ(Get(other_flags_ + 1), sequence());
  EXPECT_EQ(Get(other_flags_ + 2), 0) << "told an absent rank";
  MessageStamp stamp = world_.Stamp(0);
  stamp.incarnation = 0;
  WriteEmptyMessage(layout_, ExchangeKind::kDispatch, stamp, 0, wanted.data());
  const int64_t slot = (sequence() & 1) * ranks() + 2;
  Check(cudaMemcpy(found.data(), slots_ + slot * layout_.SlotBytes(), layout_.SlotBytes(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(CheckMessage(layout_, found.data(), ExchangeKind::kDispatch, stamp, 2), nullptr);
}

// A launch that was recorded in one membership epoch is replayed in the next one, with other peers and other flags.
TEST_F(ExchangeTest, ARecordedLaunchGoesOnInTheNextEpoch) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  Check(Exchange(args_, stream_));
  Check(cudaStreamEndCapture(stream_, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  const auto replay = [&] {
    Check(cudaGraphLaunch(executable, stream_));
    Check(cudaStreamSynchronize(stream_));
  };
  replay();
  EXPECT_EQ(error(), SignalError::kNone);

  Reset();
  ChannelEpoch epoch = Epoch();
  ++epoch.membership_epoch;
  epoch.flags = Upload<int64_t>({sequence(), sequence(), sequence()});
  Set(flags_, {int64_t{0}, int64_t{0}, int64_t{0}});
  const auto begin = [&] {
    *signals_ = ChannelSignals{};
    Set(state_, {ChannelState{.issued = sequence() - 1, .finished = sequence() - 1, .epoch = epoch}});
  };
  begin();
  replay();
  EXPECT_EQ(error(), SignalError::kMessage) << "the messages are of the epoch before";
  begin();
  for (int32_t source = 0; source < ranks(); ++source) {
    std::vector<char> message(layout_.SlotBytes());
    std::memcpy(message.data(), world_.Slot(0, source), message.size());
    auto& header = *reinterpret_cast<MessageHeader*>(message.data());
    header.membership_epoch = epoch.membership_epoch;
    header.incarnation += 1;
    Set(&peers_[source].incarnation, {header.incarnation});
    SetMessage(source, message.data());
  }
  Set(output_, std::vector<float>(kOutputs, 1.0f));
  replay();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_FALSE(OutputsAreFilled());
  Check(cudaGraphExecDestroy(executable));
  Check(cudaGraphDestroy(graph));
}

// The two halves are calls of their own; messages carry what the first one was called with.
TEST_F(ExchangeTest, TheSecondHalfKnowsTheSignatureOfTheFirst) {
  args_.part = ExchangePart::kBegin;
  Run();
  args_.part = ExchangePart::kFinish;
  args_.stamp.signature += 1;
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  EXPECT_FALSE(OutputsAreFilled());
  Reset();
  args_.part = ExchangePart::kBegin;
  Run();
  args_.part = ExchangePart::kFinish;
  Run();
  EXPECT_EQ(error(), SignalError::kMessage) << "the peers' messages have another signature than this rank's start";
  EXPECT_TRUE(OutputsAreFilled());
}

TEST_F(ExchangeTest, AnotherRankOfTheAxis) {
  Set(const_cast<int32_t*>(args_.axis_rank), {2});
  Run();
  EXPECT_EQ(error(), SignalError::kRank);
  EXPECT_EQ(signals_->error.detail, 2);
  EXPECT_EQ(Get(other_flags_ + 1), 0) << "nobody is told anything";
}

// Rows of 1 and 2 bytes an element need not end with a word; what lies behind them is somebody else's.
TEST_F(ExchangeTest, FillsToTheLastByteAndNoFurther) {
  constexpr int64_t kBytes = kOutputs * 4;
  constexpr uint8_t kUntouched = 0xa5;
  auto* const bytes = reinterpret_cast<uint8_t*>(output_);
  Set(const_cast<int32_t*>(args_.axis_rank), {2});
  for (const uint32_t pattern : {0x7f7f7f7fu, 0x7fc07fc0u, 0x7fc00000u, 0xffffffffu, 0u}) {
    for (const int64_t length : {0, 1, 2, 3, 4, 5, 6, 7, 254, 255, 1021, 1022, 1023, 1025, 2047, 2050}) {
      Reset();
      Set(bytes, std::vector<uint8_t>(kBytes, kUntouched));
      constexpr int64_t kSecond = 2304;  // the other output, on the same memory
      args_.outputs[0] = {bytes, length, pattern};
      args_.outputs[1] = {bytes + kSecond, kBytes - kSecond - length, pattern};
      args_.output_count = 2;
      Run();
      ASSERT_EQ(error(), SignalError::kRank);
      std::vector<uint8_t> now(kBytes);
      Check(cudaMemcpy(now.data(), bytes, kBytes, cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < kBytes; ++i) {
        const bool filled = i < length || (i >= kSecond && i < kBytes - length);
        const uint8_t wanted = filled ? static_cast<uint8_t>(pattern >> 8 * (i % 4)) : kUntouched;
        ASSERT_EQ(now[i], wanted) << "byte " << i << " of " << length << " bytes of " << std::hex << pattern;
      }
    }
  }
}

TEST_F(ExchangeTest, CapacityOfAnyRank) {
  int64_t most = 0;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    int64_t rows = 0;
    for (int32_t source = 0; source < ranks(); ++source) {
      rows += reinterpret_cast<const uint32_t*>(static_cast<const char*>(world_.Slot(0, source)) +
                                                layout_.CountsOffset())[ranks() + rank];
    }
    most = std::max(most, rows);
  }
  ASSERT_GT(most, 1);
  args_.capacity = most;
  Run();
  EXPECT_EQ(error(), SignalError::kNone);
  Reset();
  args_.capacity = most - 1;
  Run();
  EXPECT_EQ(error(), SignalError::kCapacity);
  EXPECT_EQ(signals_->error.detail, most);
}

TEST_F(ExchangeTest, ElementsOfABatch) {
  int32_t* dropped = Upload<int32_t>({0, 0, 4});
  Run();
  Check(CheckElements(args_, dropped, 2, stream_));
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(error(), SignalError::kNone);
  Check(CheckElements(args_, dropped, 3, stream_));
  Check(cudaStreamSynchronize(stream_));
  EXPECT_EQ(error(), SignalError::kElementCapacity);
  EXPECT_EQ(signals_->error.source, 2u);
  EXPECT_EQ(signals_->error.detail, 4);
  EXPECT_TRUE(OutputsAreFilled());
}

}  // namespace
}  // namespace jax_fabric::kernels::cuda
