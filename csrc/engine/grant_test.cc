// Grants that are taken back, on a fabric that misbehaves: once the owner hears that its memory is free, it reuses it,
// and nothing may land there any more. Whatever happens comes from the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "csrc/engine/domain_group.h"
#include "csrc/engine/grant_mutants.h"
#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric {
namespace {

using testing::Outcome;
using testing::SteppedFabric;
using testing::SteppedRank;

constexpr uint64_t kPages = 16;
constexpr uint64_t kPageBytes = 256;
constexpr std::byte kWritten{0x11};
constexpr std::byte kCanary{0xee};

// What happens besides, in the middle of it.
enum class Trouble {
  kNone,
  kLinkDownForAWhile,
  kLinkDown,
  kFaultOverOneNic,
  kWriteFails,
  kNothingComesBack,
  kWriterDies
};
enum class Who { kOwner, kWriter, kBoth };

class Scenario {
 public:
  explicit Scenario(uint64_t seed)
      : random_(seed),
        nics_(1 + static_cast<int>(UpTo(1))),
        from_(kPages * kPageBytes, kWritten),
        to_(kPages * kPageBytes),
        fabric_(seed) {
    who_ = static_cast<Who>(UpTo(2));
    trouble_ = Maybe() ? static_cast<Trouble>(1 + UpTo(5)) : Trouble::kNone;
    // Of a run that takes about 200 us: before the first write, in the middle, after the last one, after the end.
    cancel_at_ = std::vector<int64_t>{0, 2, 40, 40, 100, 600}[UpTo(5)] + UpTo(30);
    trouble_at_ = cancel_at_ + UpTo(120) - 60;
    transfers_ = 1 + UpTo(2);
    first_transfer_at_ = Maybe() ? 0 : UpTo(150);
  }

  // Empty, or what was not as it should be.
  std::string Run() {
    Connect();
    WriteBefore();
    unused_ = owner_->group->OpenGrant(to_writer_, owner_->group->AllocateImmediates(1).value()).value();
    grant_ = owner_->group->OpenGrant(to_writer_, immediate_).value();
    Check(owner_->group->ExpectImmediate(immediate_, 1'000'000, fabric_.In(1'000'000), expectation_.callback())
              .has_value(),
          "the expectation is not taken");
    for (int64_t now = 0; now < 1'000; ++now) {
      const int64_t since = now - first_transfer_at_;
      if (since >= 0 && since % 25 == 0 && since / 25 < transfers_) Start();
      if (now == trouble_at_ || (now == 0 && trouble_at_ < 0)) BeginTrouble();
      if (now == trouble_at_ + 300) EndTrouble();
      if (now == cancel_at_) Cancel();
      Step();
    }
    // The owner wants its memory back; if it does not get it from the writer, it removes that.
    for (int round = 0; round < 20 && !free_; ++round) {
      if (revoked_.calls == 0 && round == 0 && who_ == Who::kWriter) Revoke();
      if (round > 0 && revoked_.calls == revocations_) {
        if (round > 2) owner_->group->RemovePeer(to_writer_);
        Revoke();
      }
      for (int i = 0; i < 200 && !free_; ++i) Step(1, 5);
    }
    Check(free_, "the memory never becomes free");
    Step(500, 2);
    Finish();
    return problem_;
  }

  static std::map<std::string, int>& Endings() {
    static std::map<std::string, int> endings;
    return endings;
  }

 private:
  int64_t UpTo(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
  bool Maybe() { return UpTo(1) == 1; }
  void Check(bool holds, const std::string& what) {
    if (!holds && problem_.empty()) problem_ = what;
  }

  simulated::SimulatedDomainOptions Nic() {
    simulated::SimulatedDomainOptions nic;
    nic.limits.max_outstanding = Maybe() ? 4 : 64;
    nic.nic = {.latency_ns = 1'000 * UpTo(5), .jitter_ns = 1'000 * UpTo(60), .handshake_ns = 0};
    nic.nic.segment_bytes = Maybe() ? 64 : 0;
    nic.nic.completion_ns = 1'000 * UpTo(20);
    nic.faults.loss_probability = Maybe() ? 0.1 : 0;
    nic.faults.again_probability = Maybe() ? 0.2 : 0;
    nic.faults.early_completion_probability = Maybe() ? 0.7 : 0;
    nic.faults.late_landing_probability = 0.5;
    nic.faults.retransmit_ns = 10'000;
    nic.faults.retries = 12;
    nic.faults.lease_ns = 150'000;
    return nic;
  }

  void Connect() {
    owner_ = &fabric_.Add("owner", nics_, Nic());
    writer_ = &fabric_.Add("writer", nics_, Nic());
    to_writer_ = owner_->group->AddPeer(writer_->group->Address()).value();
    to_owner_ = writer_->group->AddPeer(owner_->group->Address()).value();
    Check(owner_->group->WaitPeers({{to_writer_}}, fabric_.In(10'000)).has_value(), "not connected");
    Check(writer_->group->WaitPeers({{to_owner_}}, fabric_.In(10'000)).has_value(), "not connected back");
    for (SteppedRank* rank : {owner_, writer_}) {
      Check(rank->group
                ->ReceiveMessages(
                    {.buffers = 8,
                     .max_bytes = 256,
                     .on_message = [this](PeerHandle,
                                          ByteView) { Check(false, "a user sees a message of the protocol"); }})
                .has_value(),
            "no messages");
    }
    source_ = writer_->group->RegisterMemory(from_.data(), from_.size(), MemoryKind::kHost, Access::kLocalOnly).value();
    const auto memory =
        owner_->group->RegisterMemory(to_.data(), to_.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
    target_ = DomainGroup::ParseDescriptor(owner_->group->Describe(memory).value()).value();
    immediate_ = owner_->group->AllocateImmediates(1).value();
    const auto begin = reinterpret_cast<uint64_t>(to_.data());
    fabric_.network().set_landing_observer([this, begin](uint64_t address, uint64_t end) {
      Check(!free_ || end <= begin || address >= begin + to_.size(), "a write lands in memory that is free");
    });
  }

  // The immediate is not new: what came with it before does not count.
  void WriteBefore() {
    Outcome arrived;
    Check(owner_->group->ExpectImmediate(immediate_, 3, fabric_.In(100'000), arrived.callback()).has_value(), "before");
    for (int i = 0; i < 3; ++i) {
      const SingleWrite write{.peer = to_owner_,
                              .source = source_,
                              .target = &target_,
                              .length = 1,
                              .max_length = 1,
                              .immediate = immediate_};
      Check(writer_->group->Write(write, {.deadline = fabric_.In(100'000)}).has_value(), "written before");
    }
    for (int i = 0; i < 20'000 && arrived.calls == 0; ++i) Step();
    Check(arrived.ok(), "what was written before has not come");
  }

  void Start() {
    if (writer_->group == nullptr) return;
    outcomes_.push_back(std::make_unique<Outcome>());
    RequestOptions options{.deadline = fabric_.In(Maybe() ? 100'000 : 150), .on_worker = outcomes_.back()->callback()};
    options.grant = WriteGrant::Parse(grant_.Serialize()).value();
    std::vector<uint64_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::vector<ScatterEntry> entries;
    for (const uint64_t page : pages) {
      ScatterEntry& entry = entries.emplace_back();
      entry = {.peer = to_owner_,
               .source = from_.data(),
               .source_memory = source_,
               .target = &target_,
               .target_offset = page * kPageBytes,
               .length = kPageBytes,
               .immediate = immediate_};
    }
    const PagedWrites paged{.peer = to_owner_,
                            .page_length = kPageBytes,
                            .source = source_,
                            .source_pages = {pages, kPageBytes, 0},
                            .target = &target_,
                            .target_pages = {pages, kPageBytes, 0},
                            .immediate = immediate_};
    const SingleWrite single{
        .peer = to_owner_, .source = source_, .target = &target_, .length = from_.size(), .immediate = immediate_};
    const int64_t kind = UpTo(3);
    if (kind == 3) return StartPrepared(entries, options);
    const auto transfer = kind == 0   ? writer_->group->WritePages(paged, std::move(options))
                          : kind == 1 ? writer_->group->Scatter(entries, std::move(options))
                                      : writer_->group->Write(single, std::move(options));
    Check(transfer.has_value(), "a transfer is not taken");
  }

  void StartPrepared(const std::vector<ScatterEntry>& entries, const RequestOptions& options) {
    prepared_.push_back(writer_->group->PrepareScatter(entries).value());
    Check(prepared_.back()->Post(options.deadline, options.on_worker, options.grant).has_value(),
          "a post is not taken");
  }

  void BeginTrouble() {
    switch (trouble_) {
      case Trouble::kNone:
        return;
      case Trouble::kLinkDownForAWhile:
      case Trouble::kLinkDown:
        for (int i = 0; i < nics_; ++i) fabric_.network().CutLink(*owner_->nics[i], *writer_->nics[i]);
        return;
      case Trouble::kFaultOverOneNic:
        return owner_->nics[0]->KillPeer(0, "the port is down");
      case Trouble::kWriteFails:
        writer_->nics[0]->faults().fail_post = static_cast<int>(UpTo(5));
        return;
      case Trouble::kNothingComesBack:
        writer_->nics[0]->faults().drop_completion_probability = 0.3;
        return;
      case Trouble::kWriterDies:
        prepared_.clear();
        fabric_.Kill(*writer_);
        return;
    }
  }
  void EndTrouble() {
    if (trouble_ != Trouble::kLinkDownForAWhile) return;
    for (int i = 0; i < nics_; ++i) fabric_.network().RestoreLink(*owner_->nics[i], *writer_->nics[i]);
  }

  void Cancel() {
    // Another one, under which nobody writes.
    Check(owner_->group->RevokeGrant(unused_, fabric_.In(1'000'000), unused_revoked_.callback()).has_value(), "unused");
    if (who_ != Who::kWriter) Revoke();
    if (who_ != Who::kOwner && writer_->group != nullptr) {
      Check(writer_->group->GiveUpGrant(to_owner_, grant_).has_value(), "not given up");
    }
  }

  void Revoke() {
    ++revocations_;
    Check(owner_->group->RevokeGrant(grant_, fabric_.In(20 + UpTo(Maybe() ? 50 : 1'000)), revoked_.callback())
              .has_value(),
          "revoke");
  }

  // Longer than one microsecond where only the end is of interest.
  void Step(int count, int64_t microseconds) {
    for (int i = 0; i < count; ++i) {
      fabric_.clock().Advance(microseconds - 1);
      Step();
    }
  }
  void Step() {
    fabric_.Step();
    if (free_ || revoked_.calls < revocations_ || revocations_ == 0) return;
    Check(revoked_.calls == revocations_, "a revocation ends twice");
    if (revoked_.error.code == ErrorCode::kOk) return BeFree();
    ++Endings()["in quarantine first"];
    Check(revoked_.error.code == ErrorCode::kDeadlineExceeded || revoked_.error.code == ErrorCode::kDataLoss,
          revoked_.error.message);
    Check(revoked_.error.message.find("peer 0 'writer'") != std::string::npos, revoked_.error.message);
    revoked_.error.code = ErrorCode::kOk;  // for the next one
    in_quarantine_ = revocations_;
  }
  void BeFree() {
    if (in_quarantine_ == revocations_) return;
    free_ = true;
    Check(expectation_.calls == 1 && expectation_.error.code == ErrorCode::kCancelled, "somebody still expects writes");
    std::fill(to_.begin(), to_.end(), kCanary);
  }

  void Finish() {
    Check(std::all_of(to_.begin(), to_.end(), [](std::byte each) { return each == kCanary; }), "the canary is dead");
    if (writer_->group != nullptr) {
      // Under what is over nothing is written, however old the message that says so.
      const SingleWrite write{
          .peer = to_owner_, .source = source_, .target = &target_, .length = 1, .immediate = immediate_};
      Outcome late;
      const auto taken =
          writer_->group->Write(write, {.deadline = fabric_.In(50), .on_worker = late.callback(), .grant = grant_});
      Step(50, 5);
      Check(taken.has_value() && late.calls == 1, "a late write does not end");
      Check(late.error.code != ErrorCode::kOk, "a late write succeeds");
      writer_->group->RemovePeer(to_owner_);
      Step(20, 5);
    }
    Check(trouble_ != Trouble::kNone || unused_revoked_.ok(), "the other grant is not over");
    for (const auto& outcome : outcomes_) {
      if (writer_->group == nullptr && outcome->calls == 0) continue;
      Check(outcome->calls == 1, "a transfer does not end once");
      ++Endings()[outcome->error.code == ErrorCode::kOk ? "done" : std::string(ErrorCodeName(outcome->error.code))];
    }
  }

  std::mt19937_64 random_;
  const int nics_;
  std::vector<std::byte> from_, to_;
  Who who_;
  Trouble trouble_;
  int64_t cancel_at_ = 0, trouble_at_ = 0, transfers_ = 0, first_transfer_at_ = 0;

  SteppedRank* owner_ = nullptr;
  SteppedRank* writer_ = nullptr;
  PeerHandle to_writer_ = 0, to_owner_ = 0;
  RegisteredMemory source_;
  RemoteMemory target_;
  uint32_t immediate_ = 0;
  WriteGrant grant_;
  WriteGrant unused_;
  Outcome expectation_, revoked_, unused_revoked_;
  int revocations_ = 0, in_quarantine_ = 0;
  bool free_ = false;
  std::vector<std::unique_ptr<Outcome>> outcomes_;
  std::string problem_;
  SteppedFabric fabric_;                                    // closes first: its requests end in what is above
  std::vector<std::unique_ptr<PreparedScatter>> prepared_;  // of its engines
};

TEST(Grants, NothingLandsInMemoryThatIsFree) {
  Scenario::Endings().clear();
  for (uint64_t seed = 1; seed <= 1'500; ++seed) {
    const std::string problem = Scenario(seed).Run();
    ASSERT_EQ(problem, "") << "seed " << seed;
  }
  for (const auto& [ending, count] : Scenario::Endings()) std::printf("%-20s %d\n", ending.c_str(), count);
  EXPECT_GT(Scenario::Endings()["done"], 100);
  EXPECT_GT(Scenario::Endings()["in quarantine first"], 50);
}

TEST(Grants, EveryMistakeIsNoticed) {
  for (int i = 1; i <= static_cast<int>(GrantMutant::kCountArrivalsOfAllTimes); ++i) {
    active_grant_mutant = static_cast<GrantMutant>(i);
    std::string problem;
    uint64_t seed = 0;
    while (problem.empty() && seed < 5'000) problem = Scenario(++seed).Run();
    active_grant_mutant = GrantMutant::kNone;
    EXPECT_NE(problem, "") << "mistake " << i << " goes unnoticed";
    std::printf("mistake %d: seed %d: %s\n", i, static_cast<int>(seed), problem.c_str());
  }
}

}  // namespace
}  // namespace jax_fabric
