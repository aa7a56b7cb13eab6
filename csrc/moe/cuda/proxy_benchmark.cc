// How soon the host hands a rank's messages to a NIC. One JSON object a line.
//
// first of 56 writes, 56 writes: from the word that tells the host to the first and the last of 56 writes, which a
//   domain counts (64 ranks of which 8 are on this machine). Between them are the worker's poll, and the
//   channel's and the engine's posts.
// 56 writes, floor: from a word to the moment when a thread that has seen it finds, by the clock, that as much time has
//   passed as the writes took (median). It does nothing else: what is above that is the machine, which takes the core
//   away for a while.
// graph to first write: from the call that launches a CUDA graph, which packs the messages into staging slots and tells
//   the host, to the first of those writes.
// round trip through the proxy: from one exchange's write to the next one's, of two ranks, in a CUDA graph of kernels
//   that only post and wait: answer, wait, a kernel in the place of what unpacks, post, the worker's poll, its write.
// graph to word, floor: from the call that launches a CUDA graph of one kernel that stores a word, and does nothing
//   else, to the word.
//
// proxy_benchmark [--rounds R]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/kernels/cuda/benchmark_kernels.h"
#include "csrc/kernels/cuda/exchange.h"
#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/signals.h"
#include "csrc/moe/peer_connector.h"
#include "csrc/moe/proxied_channel.h"
#include "csrc/moe/testing/counting_domain.h"

namespace jax_fabric::moe {
namespace {

using kernels::ChannelSignals;
using kernels::ChannelState;
using testing::CountingDomain;

constexpr int32_t kPeers = 56;
constexpr int kWarmUp = 200;
constexpr int64_t kRoundTrips = 200;  // of a graph

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "proxy_benchmark: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void Check(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "proxy_benchmark: %s\n", status.error().message.c_str());
  std::exit(1);
}
template <typename T>
T Value(Result<T> result) {
  if (!result) Check(Status(tl::unexpected<Error>(result.error())));
  return std::move(*result);
}

int64_t NowNs() { return SteadyClock::Get().NowNs(); }

template <typename T>
T* Mapped(int64_t count) {
  void* memory = nullptr;
  Check(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped));
  std::memset(memory, 0, count * sizeof(T));
  return static_cast<T*>(memory);
}
template <typename T>
T* Allocate(const std::vector<T>& values) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, values.size() * sizeof(T)));
  Check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

// The median.
int64_t Report(const char* name, std::vector<int64_t> ns) {
  ns.erase(ns.begin(), ns.begin() + kWarmUp);
  std::sort(ns.begin(), ns.end());
  const auto at = [&](double share) {
    return static_cast<double>(ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))]) * 1e-3;
  };
  std::printf(
      "{\"case\": \"%s\", \"metric\": \"time\", \"unit\": \"us\", \"median\": %.2f, \"p99\": %.2f, \"p999\": %.2f, "
      "\"min\": %.2f, \"max\": %.2f, \"n\": %zu}\n",
      name, at(0.5), at(0.99), at(0.999), at(0), at(1), ns.size());
  std::fflush(stdout);
  return ns[ns.size() / 2];
}

MoeConfig ConfigOf(int32_t rank, int32_t ranks) {
  MoeConfig config;
  config.layout.shape = {.ranks = ranks, .rank = rank, .experts_per_rank = 1, .experts = ranks, .hidden = 8};
  config.channels = 1;
  return config;
}

// Rank 0, whose writes are counted, and engines of the others, which only let themselves be connected to.
class Host {
 public:
  explicit Host(int32_t peers)
      : peers_engine_(Value(TransferEngine::Create({}))), engine_(Value(TransferEngine::Create({}))) {
    const int32_t ranks = peers + 1;
    std::vector<Bytes> introductions;
    for (int32_t rank = 0; rank < ranks; ++rank) configs_.push_back(ConfigOf(rank, ranks));
    for (int32_t rank = 0; rank < ranks; ++rank) {
      std::unique_ptr<Domain> domain = Value(CreateLocalDomain({.name = "rank" + std::to_string(rank)}));
      if (rank == 0) {
        auto counting = std::make_unique<CountingDomain>(std::move(domain), peers);
        domain_ = counting.get();
        domain = std::move(counting);
      }
      GroupOptions options;
      options.name = "rank" + std::to_string(rank);
      options.domains.push_back(std::move(domain));
      DomainGroup* group = Value((rank == 0 ? engine_ : peers_engine_)->AddGroup(std::move(options)));
      if (rank == 0) group_ = group;
      connectors_.push_back(std::make_unique<PeerConnector>(configs_[rank], group));
      const int64_t bytes = configs_[rank].layout.ChannelBytes();
      Check(connectors_.back()->Prepare({.memory_bytes = bytes, .staging_bytes = bytes, .map_peers = false}));
      introductions.push_back(Value(connectors_.back()->Introduction({})));
    }
    Check(connectors_[0]->Connect(introductions, Deadline::After(SteadyClock::Get(), 20'000'000)));
    std::vector<uint8_t> through_host(ranks, 1);
    through_host[0] = 0;
    signals_ = Mapped<ChannelSignals>(1);
    message_bytes_ = Mapped<int64_t>(ranks);
    missing_ = Mapped<uint8_t>(ranks);
    std::fill(message_bytes_, message_bytes_ + ranks, 64);
    channel_ = Value(ProxiedChannel::Create(0, configs_[0], connectors_[0]->table(), through_host, group_,
                                            {signals_, message_bytes_, missing_}));
    const auto immediate = [&](int64_t sequence) {
      return connectors_[0]->table().Immediate(0, 0, ArrivalImmediate(sequence));
    };
    domain_->AnswerBursts({immediate(0), immediate(1)});
    channel_->StartPolling();
  }
  ~Host() {
    channel_->StopPolling();
    channel_->Close();
    while (!channel_->Quiet()) std::this_thread::yield();
    const Deadline deadline = Deadline::After(SteadyClock::Get(), 20'000'000);
    Check(engine_->Close(deadline));
    Check(peers_engine_->Close(deadline));
  }

  // Until its writes were counted, and the channel is ready for the next one.
  CountingDomain::Times Wait(int64_t sequence) {
    while (domain_->bursts() < static_cast<uint64_t>(sequence) ||
           std::atomic_ref(signals_->host.done).load(std::memory_order_acquire) < sequence) {
      if (channel_->error() == nullptr) continue;
      std::fprintf(stderr, "proxy_benchmark: %s\n", channel_->error()->message.c_str());
      std::exit(1);
    }
    return domain_->times();
  }

  // Exchanges whose writes were counted.
  int64_t exchanges() const { return static_cast<int64_t>(domain_->bursts()); }
  const MoeConfig& config() const { return configs_[0]; }
  ChannelSignals* signals() { return signals_; }
  int64_t* message_bytes() { return message_bytes_; }
  uint8_t* missing() { return missing_; }
  std::span<std::byte> staging() { return connectors_[0]->staging(); }

 private:
  const std::unique_ptr<TransferEngine> peers_engine_, engine_;
  std::vector<MoeConfig> configs_;  // outlive the connectors
  std::vector<std::unique_ptr<PeerConnector>> connectors_;
  CountingDomain* domain_ = nullptr;
  DomainGroup* group_ = nullptr;
  ChannelSignals* signals_ = nullptr;
  int64_t* message_bytes_ = nullptr;
  uint8_t* missing_ = nullptr;
  std::unique_ptr<ProxiedChannel> channel_;
};

// The device's half of an exchange without rows, as a graph: packs and tells.
class Device {
 public:
  explicit Device(Host& host) {
    const kernels::SlotLayout& layout = host.config().layout;
    const int32_t ranks = layout.shape.ranks;
    void* staging = nullptr;
    Check(cudaHostRegister(host.staging().data(), host.staging().size(), cudaHostRegisterMapped));
    Check(cudaHostGetDevicePointer(&staging, host.staging().data(), 0));
    std::vector<void*> slots;
    for (int parity = 0; parity < 2; ++parity) {
      for (int32_t rank = 0; rank < ranks; ++rank) {
        slots.push_back(static_cast<std::byte*>(staging) + layout.SlotOffset(rank, parity));
      }
    }
    state_ = Allocate(std::vector<ChannelState>(1));
    kernels::CombineSendArgs send;
    send.layout = layout;
    send.route = {Allocate(std::vector<int32_t>(ranks, -1)), Allocate(std::vector<int32_t>(ranks, 0))};
    send.slots = Allocate(slots);
    send.message_bytes = host.message_bytes();
    kernels::cuda::ExchangeArgs exchange;
    exchange.channel = {.state = state_,
                        .signals = host.signals(),
                        .missing = host.missing(),
                        .peers = Allocate(std::vector<kernels::cuda::ExchangePeer>(ranks)),
                        .expert_rows = Allocate(std::vector<int64_t>(ranks)),
                        .through_host = true,
                        .timeout_ns = 20'000'000'000};
    exchange.part = kernels::cuda::ExchangePart::kBegin;
    exchange.layout = layout;
    exchange.kind = kernels::ExchangeKind::kCombine;
    exchange.axis_rank = Allocate(std::vector<int32_t>(1));
    exchange.token = Allocate(std::vector<int32_t>(1));
    Check(kernels::cuda::LoadKernels());
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    cudaGraph_t graph;
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Check(kernels::cuda::CombineSend(send, {.stream = stream_,
                                            .channel = state_,
                                            .tell = {.state = state_,
                                                     .signals = host.signals(),
                                                     .peers = exchange.channel.peers,
                                                     .axis_rank = exchange.axis_rank,
                                                     .ranks = ranks,
                                                     .through_host = true}}));
    exchange.told = true;
    Check(kernels::cuda::Exchange(exchange, stream_));
    Check(cudaStreamEndCapture(stream_, &graph));
    Check(cudaGraphInstantiate(&graph_, graph, 0));
    bare_ = {Mapped<int64_t>(1), nullptr, Allocate(std::vector<int64_t>(1))};
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    Check(kernels::cuda::LaunchPost(bare_, stream_));
    Check(cudaStreamEndCapture(stream_, &graph));
    Check(cudaGraphInstantiate(&bare_graph_, graph, 0));
  }

  // The last exchange is done, and this is the number of the next one.
  void SetNext(int64_t sequence) {
    const ChannelState state{.issued = sequence - 1, .finished = sequence - 1, .epoch = {}};
    Check(cudaMemcpy(state_, &state, sizeof(state), cudaMemcpyHostToDevice));
  }
  void Launch() { Check(cudaGraphLaunch(graph_, stream_)); }
  void Wait() { Check(cudaStreamSynchronize(stream_)); }
  // Nanoseconds from the launch of a graph of a kernel that only stores a word, to the word.
  int64_t TimeBareGraph() {
    std::atomic_ref posted(*bare_.posted);
    posted.store(0, std::memory_order_relaxed);
    const int64_t begin_ns = NowNs();
    Check(cudaGraphLaunch(bare_graph_, stream_));
    while (posted.load(std::memory_order_acquire) == 0) {
    }
    return NowNs() - begin_ns;
  }

 private:
  ChannelState* state_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  kernels::cuda::PingPong bare_;
  cudaGraphExec_t bare_graph_ = nullptr;
};

// From a word to the moment when another thread, which only looks at the clock, finds that `span_ns` have passed, ns.
std::vector<int64_t> ClockOnly(int rounds, int64_t span_ns) {
  alignas(64) std::atomic<int64_t> begun{0};
  alignas(64) std::atomic<int64_t> seen{0};
  std::thread other([&] {
    int64_t before_ns = 0;
    for (int i = 0; i < rounds; ++i) {
      int64_t begin_ns;
      while ((begin_ns = begun.load(std::memory_order_acquire)) == before_ns) {
      }
      int64_t now_ns;
      while ((now_ns = NowNs()) - begin_ns < span_ns) {
      }
      before_ns = begin_ns;
      seen.store(now_ns, std::memory_order_release);
    }
  });
  std::vector<int64_t> spans;
  for (int i = 0; i < rounds; ++i) {
    const int64_t begin_ns = NowNs();
    begun.store(begin_ns, std::memory_order_release);
    int64_t end_ns;
    while ((end_ns = seen.load(std::memory_order_acquire)) <= begin_ns) {
    }
    spans.push_back(end_ns - begin_ns);
  }
  other.join();
  return spans;
}

// When exchanges of two ranks began, ns, whose kernels only post and wait.
std::vector<int64_t> RoundTrips(int graphs) {
  Host host(1);
  cudaStream_t stream;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const kernels::cuda::PingPong words{&host.signals()->posted.sequence, &host.signals()->host.done,
                                      Allocate(std::vector<int64_t>(1))};
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int64_t i = 0; i < kRoundTrips; ++i) Check(kernels::cuda::LaunchRoundTrip(words, stream));
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<int64_t> cycles;
  for (int64_t i = 0; i < graphs; ++i) {
    Check(cudaGraphLaunch(executable, stream));
    int64_t before_ns = 0;
    for (int64_t seen = i * kRoundTrips; seen < (i + 1) * kRoundTrips;) {
      if (host.exchanges() == seen) continue;
      const int64_t now_ns = NowNs();
      // The first of a graph is a launch. What this thread has slept through is nobody's time.
      if (before_ns != 0 && host.exchanges() == seen + 1) cycles.push_back(now_ns - before_ns);
      before_ns = now_ns;
      seen = host.exchanges();
    }
    Check(cudaStreamSynchronize(stream));
  }
  return cycles;
}

int Main(int argc, char** argv) {
  int rounds = 5000;
  if (argc == 3 && std::strcmp(argv[1], "--rounds") == 0) {
    rounds = std::atoi(argv[2]);
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: proxy_benchmark [--rounds R]\n");
    return 2;
  }
  if (rounds <= kWarmUp) {
    std::fprintf(stderr, "proxy_benchmark: --rounds %d: must be above %d, which are for warming up\n", rounds, kWarmUp);
    return 2;
  }
  Host host(kPeers);
  Device device(host);
  std::vector<int64_t> first_writes, writes, from_graph, from_bare_graph;
  int64_t sequence = 0;
  for (int i = 0; i < rounds; ++i) {
    ++sequence;
    const int64_t begin_ns = NowNs();
    std::atomic_ref(host.signals()->posted.sequence).store(sequence, std::memory_order_release);
    const CountingDomain::Times times = host.Wait(sequence);
    first_writes.push_back(times.first_ns - begin_ns);
    writes.push_back(times.last_ns - begin_ns);
  }
  Report("first of 56 writes", std::move(first_writes));
  const int64_t median_ns = Report("56 writes", std::move(writes));
  Report("56 writes, floor: only the clock", ClockOnly(rounds, median_ns));
  for (int i = 0; i < rounds; ++i) {
    device.SetNext(++sequence);
    const int64_t begin_ns = NowNs();
    device.Launch();
    from_graph.push_back(host.Wait(sequence).first_ns - begin_ns);
    device.Wait();
    from_bare_graph.push_back(device.TimeBareGraph());
    device.Wait();
  }
  Report("graph to first write", std::move(from_graph));
  Report("graph to word, floor", std::move(from_bare_graph));
  Report("round trip through the proxy", RoundTrips(60));
  return 0;
}

}  // namespace
}  // namespace jax_fabric::moe

int main(int argc, char** argv) { return jax_fabric::moe::Main(argc, argv); }
