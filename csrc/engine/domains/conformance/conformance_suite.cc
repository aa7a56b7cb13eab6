#include "csrc/engine/domains/conformance/conformance_suite.h"

#include <sched.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/engine/domains/conformance/direct_node.h"
#include "csrc/engine/domains/conformance/remote_node.h"

namespace jax_fabric::conformance {
namespace {

// Generous: sanitizers, and machines with fewer cores than nodes.
constexpr int64_t kPatienceUs = 60'000'000;

std::string PlacementName(NodePlacement placement) {
  switch (placement) {
    case NodePlacement::kOneThread:
      return "OneThread";
    case NodePlacement::kThreads:
      return "Threads";
    case NodePlacement::kProcesses:
      return "Processes";
  }
  return "Unknown";
}

}  // namespace

std::string CaseName(const testing::TestParamInfo<ConformanceCase>& info) {
  std::string name = info.param.fabric + PlacementName(info.param.placement);
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

void PrintTo(const ConformanceCase& value, std::ostream* out) {
  *out << value.fabric << " " << PlacementName(value.placement);
}

void DomainConformance::TearDown() {
  if (HasFatalFailure()) return;
  UntilComplete();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].node) continue;
    EXPECT_EQ(nodes_[i].own.size(), nodes_[i].posted) << "node " << i;
  }
}

void DomainConformance::MakeUnconnectedNode(const DomainShape& shape) {
  Result<std::unique_ptr<Node>> made = MakeError(ErrorCode::kUnknown, "not made");
  switch (GetParam().placement) {
    case NodePlacement::kOneThread:
      if (!fabric_) fabric_ = MakeConformanceFabric(GetParam().fabric);
      ASSERT_TRUE(fabric_);
      made = DirectNode::Create(fabric_, shape);
      break;
    case NodePlacement::kThreads:
      made = RemoteNode::StartThread(GetParam().fabric, shape);
      break;
    case NodePlacement::kProcesses:
      made = RemoteNode::StartProcess(GetParam().fabric, shape);
      break;
  }
  ASSERT_TRUE(made.has_value()) << made.error().message;
  TestNode node;
  node.node = std::move(*made);
  node.peers.assign(nodes_.size() + 1, Completion::kUnknownPeer);
  for (TestNode& other : nodes_) other.peers.push_back(Completion::kUnknownPeer);
  nodes_.push_back(std::move(node));
}

void DomainConformance::Connect(size_t from, size_t to) {
  const auto peer = nodes_[from]->AddPeer(nodes_[to]->Address());
  ASSERT_TRUE(peer.has_value()) << peer.error().message;
  nodes_[from].peers[to] = *peer;
}

void DomainConformance::MakeNodes(size_t count, const DomainShape& shape) {
  const size_t first = nodes_.size();
  for (size_t i = 0; i < count; ++i) ASSERT_NO_FATAL_FAILURE(MakeUnconnectedNode(shape));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (size_t j = 0; j < nodes_.size(); ++j) {
      if (i == j || (i < first && j < first) || !nodes_[i].node || !nodes_[j].node) continue;
      ASSERT_NO_FATAL_FAILURE(Connect(i, j));
    }
  }
  Until("all peers are ready", [&] {
    for (TestNode& node : nodes_) {
      for (const PeerId peer : node.peers) {
        if (node.node && peer != Completion::kUnknownPeer && node->State(peer) == PeerState::kConnecting) return false;
      }
    }
    return true;
  });
}

Buffer DomainConformance::MakeBuffer(size_t node, uint64_t length, Access access, uint8_t poison) {
  Buffer buffer;
  buffer.length = length;
  const auto address = nodes_[node]->Allocate(length);
  EXPECT_TRUE(address.has_value()) << address.error().message;
  if (!address.has_value()) return buffer;
  buffer.address = *address;
  if (poison != 0) nodes_[node]->FillByte(*address, length, poison);  // it is zero already, and perhaps huge
  const auto region = nodes_[node]->Register(*address, length, access);
  EXPECT_TRUE(region.has_value()) << region.error().message;
  if (region.has_value()) buffer.region = *region;
  return buffer;
}

WriteRequest DomainConformance::MakeWrite(size_t from, size_t to, const Buffer& source, const Buffer& target,
                                          uint64_t length, uint64_t source_offset, uint64_t target_offset,
                                          std::optional<uint32_t> immediate) {
  WriteRequest write;
  write.peer = nodes_[from].peers[to];
  write.source = reinterpret_cast<const void*>(source.address + source_offset);
  write.local_key = source.region.local_key;
  write.length = length;
  write.remote_address = target.region.remote_address + target_offset;
  write.remote_key = target.region.remote_key;
  write.immediate = immediate;
  return write;
}

uint64_t DomainConformance::Post(size_t from, std::span<const WriteRequest> requests) {
  uint64_t again = 0;
  Until("everything is posted", [&] {
    const PostOutcome outcome = nodes_[from]->PostWrites(requests);
    nodes_[from].posted += outcome.posted;
    requests = requests.subspan(outcome.posted);
    EXPECT_NE(outcome.last, PostResult::kRejected) << outcome.error;
    again += outcome.last == PostResult::kAgain;
    return requests.empty() || outcome.last == PostResult::kRejected;
  });
  return again;
}

uint64_t DomainConformance::Post(size_t from, std::span<const SendRequest> requests) {
  uint64_t again = 0;
  Until("everything is sent", [&] {
    const PostOutcome outcome = nodes_[from]->PostSends(requests);
    nodes_[from].posted += outcome.posted;
    requests = requests.subspan(outcome.posted);
    EXPECT_NE(outcome.last, PostResult::kRejected) << outcome.error;
    again += outcome.last == PostResult::kAgain;
    return requests.empty() || outcome.last == PostResult::kRejected;
  });
  return again;
}

void DomainConformance::ExpectRefused(size_t from, const WriteRequest& request, const std::string& what) {
  TestNode& node = nodes_[from];
  const size_t before = node.own.size();
  PostOutcome outcome;
  Until(what + " is posted or refused", [&] {
    outcome = node->PostWrites({&request, 1});
    return outcome.last != PostResult::kAgain;
  });
  if (outcome.last == PostResult::kRejected) {
    EXPECT_FALSE(outcome.error.empty()) << what << " must be explained";
    return;
  }
  ASSERT_EQ(outcome.last, PostResult::kPosted) << what;
  ++node.posted;
  ASSERT_TRUE(Until(what + " is refused", [&] { return node.own.size() > before; }));
  EXPECT_NE(node.own.back().code, ErrorCode::kOk) << what;
  EXPECT_FALSE(node->LastError().empty()) << what << " must be explained";
}

void DomainConformance::Sort(TestNode& node, const std::vector<Completion>& completions) {
  for (const Completion& completion : completions) {
    switch (completion.kind) {
      case CompletionKind::kWrite:
      case CompletionKind::kSend:
        node.own.push_back(completion);
        break;
      case CompletionKind::kReceive:
        node.receives.push_back(completion);
        break;
      case CompletionKind::kImmediate:
        node.immediates.push_back(completion);
        break;
      case CompletionKind::kPeerFault:
        node.faults.push_back(completion);
        break;
    }
  }
}

void DomainConformance::PollAll() {
  for (TestNode& node : nodes_) {
    if (node.node) Sort(node, node->Poll());
  }
}

bool DomainConformance::Until(const std::string& what, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(SteadyClock::Get(), kPatienceUs);
  while (!condition()) {
    if (deadline.Passed(SteadyClock::Get())) {
      ADD_FAILURE() << "waited too long until " << what;
      return false;
    }
    PollAll();
    if (GetParam().placement != NodePlacement::kOneThread) sched_yield();
  }
  return true;
}

bool DomainConformance::UntilComplete() {
  return Until("all requests are complete", [&] {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [](const TestNode& node) { return !node.node || node.own.size() >= node.posted; });
  });
}

void DomainConformance::PollForMore() {
  const Deadline deadline = Deadline::After(SteadyClock::Get(), 20'000);
  for (int i = 0; i < 50 || !deadline.Passed(SteadyClock::Get()); ++i) PollAll();
}

void DomainConformance::ExpectEachImmediateOnce(size_t node, uint32_t count) {
  Until("all immediates are there", [&] { return nodes_[node].immediates.size() >= count; });
  PollForMore();
  std::vector<int> seen(count);
  for (const Completion& completion : nodes_[node].immediates) {
    if (completion.immediate < count) {
      ++seen[completion.immediate];
    } else {
      ADD_FAILURE() << "nobody sent the immediate " << completion.immediate;
    }
  }
  for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], 1) << "immediate " << i << " at node " << node;
}

std::map<uint64_t, int> DomainConformance::CountContexts(const std::vector<Completion>& completions) {
  std::map<uint64_t, int> counts;
  for (const Completion& completion : completions) ++counts[completion.context];
  return counts;
}

}  // namespace jax_fabric::conformance
