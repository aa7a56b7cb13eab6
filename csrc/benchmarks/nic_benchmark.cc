// Writes between two processes over one NIC's library: a raw loop, the domain, and the whole engine above it take
// turns. benchmarks/record --bench nic runs it and keeps the ratios.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "csrc/benchmarks/domain_contender.h"
#include "csrc/benchmarks/engine_contender.h"
#include "csrc/benchmarks/process_pair.h"
#include "csrc/benchmarks/raw_fabric.h"
#include "csrc/benchmarks/raw_verbs.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/efa/efa_domain.h"

namespace jax_fabric::benchmarks {
namespace {

constexpr char kUsage[] =
    R"(usage: nic_benchmark --over tcp;ofi_rxm|shm|rdma [--repetitions N] [--quick] [--pages N] [--case TEXT]
                     [--contender TEXT]

Writes from one process to another: by a raw loop, by the domain over the same library, and by the engine, in turn. Over
a provider of libfabric it is the efa domain; over "rdma", this machine's first and last RDMA device (scripts/soft_roce has
two), the connectx domain. One JSON object a line and contender: the case, and the seconds of each repetition. Progress
goes to stderr. --pages says how many pages a repetition writes; on a busy machine the best of many short ones says most.
--case and --contender run those alone that have TEXT in their names.
)";
constexpr char kRdma[] = "rdma";
constexpr uint64_t kMemoryBytes = 64 << 20;
constexpr uint64_t kPageBytes = 1024;
constexpr uint32_t kLargeWindow = 4;

struct Options {
  std::string over;
  std::string only_case;
  std::string only_contender;
  int repetitions = 9;
  uint64_t run_bytes = 128 << 20;
  uint64_t run_pages = 32768;
};

// What the domain takes.
struct Room {
  uint32_t share = 0;  // writes under way that the engine lets one peer have
  uint64_t max_write_bytes = 0;
};

struct Case {
  std::string name;
  Batch batch;
};

EfaDomainOptions DomainOptions(const std::string& provider) {
  EfaDomainOptions options;
  options.provider = provider;
  if (provider.starts_with("tcp")) options.source_address = "127.0.0.1";
  options.peer_timeout_us = 2 * kTimeoutUs;  // it is not polled while others have their turn
  return options;
}

ConnectXDomainOptions RdmaOptions(const std::string& device) {
  ConnectXDomainOptions options;
  options.device = device;
  options.peer_timeout_us = 2 * kTimeoutUs;
  return options;
}

// The first device at the writer's end, the last one at the other.
Result<std::string> DeviceOf(Role role) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    names.push_back(each.path().filename());
  }
  if (names.empty()) return MakeError(ErrorCode::kNotFound, "this machine has no RDMA device: scripts/soft_roce has");
  const auto [first, last] = std::minmax_element(names.begin(), names.end());
  return role == Role::kWriter ? *first : *last;
}

using Ends = std::vector<std::unique_ptr<Contender>>;

// Every contender has endpoints of its own.
Result<Ends> MakeEnds(const std::string& over, Role role, std::span<std::byte> memory, Room& room) {
  Ends ends;
  std::function<Result<std::unique_ptr<Domain>>()> create = [&] { return CreateEfaDomain(DomainOptions(over)); };
  if (over == kRdma) {
    JF_ASSIGN_OR_RETURN(const std::string device, DeviceOf(role));
    create = [device] { return CreateConnectXDomain(RdmaOptions(device)); };
    JF_ASSIGN_OR_RETURN(auto raw, RawVerbs::Create(device, memory));
    ends.push_back(std::move(raw));
  } else {
    JF_ASSIGN_OR_RETURN(auto raw, RawFabric::Create(over, memory));
    ends.push_back(std::move(raw));
  }
  JF_ASSIGN_OR_RETURN(auto domain, create());
  const uint32_t depth = domain->limits().max_outstanding;
  room = {depth - depth / 2, domain->limits().max_write_bytes};
  ends.push_back(std::make_unique<DomainContender>(std::move(domain), memory));
  JF_ASSIGN_OR_RETURN(auto under_engine, create());
  JF_ASSIGN_OR_RETURN(auto engine, EngineContender::Create(std::move(under_engine), memory));
  ends.push_back(std::move(engine));
  return ends;
}

Batch MakeBatch(uint64_t write_bytes, uint64_t count, uint32_t window, bool immediates) {
  Batch batch;
  batch.write_bytes = write_bytes;
  batch.window = window;
  batch.immediates = immediates;
  const uint64_t places = kMemoryBytes / write_bytes;
  for (uint64_t i = 0; i < count; ++i) batch.offsets.push_back(i % places * write_bytes);
  return batch;
}

std::vector<Case> Cases(const Options& options, const Room& room) {
  std::vector<Case> cases;
  for (const uint64_t mib : {1, 4, 16}) {
    if (mib << 20 > room.max_write_bytes) {
      std::fprintf(stderr, "%s: no writes of %lu MiB, at most %lu bytes go at once\n", options.over.c_str(), mib,
                   room.max_write_bytes);
      continue;
    }
    const uint64_t count = std::max<uint64_t>(kLargeWindow, options.run_bytes / (mib << 20));
    cases.push_back({"writes of " + std::to_string(mib) + " MiB", MakeBatch(mib << 20, count, kLargeWindow, false)});
  }
  for (const bool immediates : {false, true}) {
    const std::string name = immediates ? "pages of 1 KiB, each with an immediate" : "pages of 1 KiB";
    cases.push_back({name, MakeBatch(kPageBytes, options.run_pages, room.share, immediates)});
  }
  if (options.over.find("ofi_rxm") != std::string::npos) {
    Case apart = cases.back();
    apart.name += " (of the raw loop, too, when the page has arrived)";
    apart.batch.raw_immediates_apart = true;
    cases.push_back(std::move(apart));
  }
  std::erase_if(cases, [&](const Case& each) { return each.name.find(options.only_case) == std::string::npos; });
  return cases;
}

// Once, untimed: bytes that no other contender has left there.
Status CheckBytes(const ProcessPair& pair, size_t contender, const Batch& batch, uint8_t seed) {
  const auto source = pair.source();
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(seed + i * 7 + (i >> 10));
  JF_RETURN_IF_ERROR(pair.contenders()[contender]->Write(batch));
  for (const uint64_t offset : batch.offsets) {
    if (std::memcmp(source.data() + offset, pair.target().data() + offset, batch.write_bytes) != 0) {
      return MakeError(ErrorCode::kDataLoss, "{}: other bytes at {} than were written",
                       pair.contenders()[contender]->name(), offset);
    }
  }
  return {};
}

// Indices of the contenders that take part.
std::vector<size_t> Chosen(const ProcessPair& pair, const Options& options) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < pair.contenders().size(); ++i) {
    if (pair.contenders()[i]->name().find(options.only_contender) != std::string::npos) chosen.push_back(i);
  }
  return chosen;
}

Status RunCase(ProcessPair& pair, const Case& each, std::span<const size_t> chosen, int repetitions, uint8_t& seed) {
  std::vector<std::vector<double>> seconds(pair.contenders().size());
  for (int round = -1; round < repetitions; ++round) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      // Nobody is always behind the same one.
      const size_t turn = chosen[(i + static_cast<size_t>(round + 1)) % chosen.size()];
      pair.Turn(turn);
      if (round < 0) {
        JF_RETURN_IF_ERROR(CheckBytes(pair, turn, each.batch, ++seed));
        continue;
      }
      const int64_t begin_ns = SteadyClock::Get().NowNs();
      JF_RETURN_IF_ERROR(pair.contenders()[turn]->Write(each.batch));
      seconds[turn].push_back(static_cast<double>(SteadyClock::Get().NowNs() - begin_ns) * 1e-9);
    }
  }
  for (const size_t i : chosen) {
    std::printf("{\"case\": \"%s\", \"contender\": \"%s\", \"write_bytes\": %lu, \"writes\": %zu, \"window\": %u, ",
                each.name.c_str(), pair.contenders()[i]->name().c_str(), each.batch.write_bytes,
                each.batch.offsets.size(), each.batch.window);
    std::printf("\"seconds\": [%.9g", seconds[i][0]);
    for (size_t run = 1; run < seconds[i].size(); ++run) std::printf(", %.9g", seconds[i][run]);
    std::printf("]}\n");
  }
  std::fflush(stdout);
  return {};
}

Status Run(const Options& options) {
  Room room;
  const auto make = [&](Role role, std::span<std::byte> memory) { return MakeEnds(options.over, role, memory, room); };
  JF_ASSIGN_OR_RETURN(const auto pair, ProcessPair::Start(kMemoryBytes, make));
  const std::vector<size_t> chosen = Chosen(*pair, options);
  uint8_t seed = 0;
  for (const Case& each : Cases(options, room)) {
    std::fprintf(stderr, "%s: %s\n", options.over.c_str(), each.name.c_str());
    JF_RETURN_IF_ERROR(RunCase(*pair, each, chosen, options.repetitions, seed));
  }
  return {};
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") return std::printf("%s", kUsage), 0;
    if (flag == "--quick") {
      options.repetitions = 3;
      options.run_bytes = 16 << 20;
      options.run_pages = 4096;
    } else if (flag == "--over" && i + 1 < argc) {
      options.over = argv[++i];
    } else if (flag == "--case" && i + 1 < argc) {
      options.only_case = argv[++i];
    } else if (flag == "--contender" && i + 1 < argc) {
      options.only_contender = argv[++i];
    } else if (flag == "--pages" && i + 1 < argc) {
      options.run_pages = std::strtoull(argv[++i], nullptr, 10);
    } else if (flag == "--repetitions" && i + 1 < argc) {
      options.repetitions = std::atoi(argv[++i]);
    } else {
      return std::fprintf(stderr, "nic_benchmark: %s: unknown, or without a value\n%s", argv[i], kUsage), 2;
    }
  }
  if (options.over.empty() || options.repetitions < 1 || options.run_pages < 1) {
    return std::fprintf(stderr, "nic_benchmark: an --over, and at least 1 of --repetitions and --pages\n%s", kUsage), 2;
  }
  const Status status = Run(options);
  if (!status) std::fprintf(stderr, "nic_benchmark: %s\n", status.error().message.c_str());
  return status ? 0 : 1;
}

}  // namespace
}  // namespace jax_fabric::benchmarks

int main(int argc, char** argv) { return jax_fabric::benchmarks::Main(argc, argv); }
