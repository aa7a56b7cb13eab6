// What it costs to post a write of a prepared scatter to 56 peers, up to a domain that counts writes and sends nothing.
// benchmarks/record --bench nic runs it, once more under callgrind to count instructions.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/moe/testing/counting_domain.h"

namespace jax_fabric::benchmarks {
namespace {

using moe::testing::CountingDomain;

constexpr char kUsage[] =
    R"(usage: scatter_benchmark [--rounds N]

Posts a prepared scatter to 56 peers N times (default: 20000), in one thread. Prints one JSON object: nanoseconds a
write from its first to its last post, and of the whole round (submit, post, complete), as medians.
)";
constexpr uint32_t kPeers = 56;
constexpr uint64_t kWriteBytes = 4096;

Deadline InTime() { return Deadline::After(SteadyClock::Get(), 60'000'000); }

// A group whose writes are counted, and the groups that they would go to.
class Scatter {
 public:
  Status Open() {
    JF_ASSIGN_OR_RETURN(peers_engine_, TransferEngine::Create({.threads = false}));
    EngineOptions options;
    options.threads = false;
    options.pump = [this] {
      peers_engine_->Step();
      engine_->Step();
    };
    JF_ASSIGN_OR_RETURN(engine_, TransferEngine::Create(std::move(options)));
    JF_ASSIGN_OR_RETURN(auto local, CreateLocalDomain({.name = "writer"}));
    auto counting = std::make_unique<CountingDomain>(std::move(local), kPeers);
    domain_ = counting.get();
    JF_ASSIGN_OR_RETURN(DomainGroup * group, AddGroup(*engine_, "writer", std::move(counting)));
    JF_ASSIGN_OR_RETURN(const RegisteredMemory source, Register(*group));
    std::vector<ScatterEntry> entries;
    targets_.resize(kPeers);
    for (uint32_t i = 0; i < kPeers; ++i) {
      const std::string name = fmt::format("peer{}", i);
      JF_ASSIGN_OR_RETURN(auto domain, CreateLocalDomain({.name = name}));
      JF_ASSIGN_OR_RETURN(DomainGroup * to, AddGroup(*peers_engine_, name, std::move(domain)));
      JF_ASSIGN_OR_RETURN(const RegisteredMemory memory, Register(*to));
      JF_ASSIGN_OR_RETURN(const Bytes descriptor, to->Describe(memory));
      JF_ASSIGN_OR_RETURN(targets_[i], DomainGroup::ParseDescriptor(descriptor));
      ScatterEntry entry;
      JF_ASSIGN_OR_RETURN(entry.peer, group->AddPeer(to->Address()));
      JF_RETURN_IF_ERROR(group->WaitPeers({&entry.peer, 1}, InTime()));
      entry.source = source.address;
      entry.source_memory = source;
      entry.target = &targets_[i];
      entry.length = kWriteBytes;
      entry.immediate = 1;
      entries.push_back(entry);
    }
    JF_ASSIGN_OR_RETURN(scatter_, group->PrepareScatter(entries));
    domain_->AnswerBursts({1, 1});
    return {};
  }
  ~Scatter() {
    scatter_.reset();
    if (engine_) static_cast<void>(engine_->Close(InTime()));
    if (peers_engine_) static_cast<void>(peers_engine_->Close(InTime()));
  }

  // Until it is complete.
  Status Post() {
    struct Outcome {
      bool done = false;
      bool failed = false;
    } outcome;
    JF_RETURN_IF_ERROR(scatter_->Post(InTime(), {[](void* context, const Error* error) {
                                                   auto* self = static_cast<Outcome*>(context);
                                                   self->done = true;
                                                   self->failed = error != nullptr;
                                                 },
                                                 &outcome}));
    while (!outcome.done) engine_->Step();
    if (outcome.failed) return MakeError(ErrorCode::kInternal, "a scatter failed");
    return {};
  }

  const CountingDomain& domain() const { return *domain_; }

 private:
  static Result<DomainGroup*> AddGroup(TransferEngine& engine, const std::string& name,
                                       std::unique_ptr<Domain> domain) {
    GroupOptions options;
    options.name = name;
    options.domains.push_back(std::move(domain));
    return engine.AddGroup(std::move(options));
  }
  Result<RegisteredMemory> Register(DomainGroup& group) {
    memory_.push_back(std::make_unique<std::byte[]>(kWriteBytes));
    return group.RegisterMemory(memory_.back().get(), kWriteBytes, MemoryKind::kHost, Access::kRemoteWrite);
  }

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<RemoteMemory> targets_;
  std::unique_ptr<TransferEngine> peers_engine_, engine_;
  CountingDomain* domain_ = nullptr;
  std::unique_ptr<PreparedScatter> scatter_;
};

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Status Run(uint64_t rounds) {
  Scatter scatter;
  JF_RETURN_IF_ERROR(scatter.Open());
  std::vector<double> posting, whole;
  for (uint64_t i = 0; i < rounds; ++i) {
    const int64_t begin_ns = SteadyClock::Get().NowNs();
    JF_RETURN_IF_ERROR(scatter.Post());
    whole.push_back(static_cast<double>(SteadyClock::Get().NowNs() - begin_ns) / kPeers);
    const CountingDomain::Times& times = scatter.domain().times();
    posting.push_back(static_cast<double>(times.last_ns - times.first_ns) / (kPeers - 1));
  }
  if (scatter.domain().bursts() != rounds) {
    return MakeError(ErrorCode::kInternal, "{} rounds, but {} of 56 writes", rounds, scatter.domain().bursts());
  }
  std::printf("{\"peers\": %u, \"rounds\": %lu, \"post_ns_per_write\": %.2f, \"round_ns_per_write\": %.2f}\n", kPeers,
              rounds, Median(posting), Median(whole));
  return {};
}

int Main(int argc, char** argv) {
  uint64_t rounds = 20000;
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return std::printf("%s", kUsage), 0;
  if (argc == 3 && std::strcmp(argv[1], "--rounds") == 0) {
    rounds = std::strtoull(argv[2], nullptr, 10);
  } else if (argc != 1) {
    return std::fprintf(stderr, "%s", kUsage), 2;
  }
  if (rounds == 0) return std::fprintf(stderr, "scatter_benchmark: --rounds must be 1 or more\n"), 2;
  const Status status = Run(rounds);
  if (!status) std::fprintf(stderr, "scatter_benchmark: %s\n", status.error().message.c_str());
  return status ? 0 : 1;
}

}  // namespace
}  // namespace jax_fabric::benchmarks

int main(int argc, char** argv) { return jax_fabric::benchmarks::Main(argc, argv); }
