#include "csrc/moe/model/program_model.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "csrc/moe/model/model_ranks.h"
#include "csrc/moe/model/program_rank.h"
#include "csrc/moe/model/workload.h"

namespace jax_fabric::moe::model {
namespace {

using Messages = std::vector<std::vector<Message>>;  // by source, of the ranks that are run

// What the paper's rows are: the library published beside it sends a row for every expert, with 16 bytes of its own.
constexpr int64_t kPaperRowHeaderBytes = 16;

// The messages of one call, and how many of each kind come to every rank that is run.
class CallPlan {
 public:
  CallPlan(const ModelOptions& options, const Workload& workload)
      : options_(options), layout_(options.Config().layout), workload_(workload) {}

  // bytes(rank, peer): of the message between these two of all ranks; negative: none.
  template <typename BytesOf>
  Messages Make(BytesOf bytes) const {
    const int32_t run = options_.Run();
    Messages messages(run);
    for (int32_t rank = 0; rank < run; ++rank) {
      for (int32_t distance = 1; distance < options_.ranks; ++distance) {
        const int32_t peer = (rank + distance) % options_.ranks;
        const int64_t length = bytes(rank, peer);
        // The others stand for the peer in turn.
        const int32_t target = run == options_.ranks ? peer : (rank + 1 + (distance - 1) % (run - 1)) % run;
        if (length >= 0) messages[rank].push_back({target, length});
      }
    }
    return messages;
  }
  static std::vector<int64_t> Arrivals(const Messages& messages) {
    std::vector<int64_t> count(messages.size());
    for (const auto& each : messages) {
      for (const Message& message : each) ++count[message.target];
    }
    return count;
  }

  bool SameNode(int32_t rank, int32_t peer) const { return options_.SameNode(rank, peer); }
  int64_t OffNode(int32_t rank, int32_t peer, int64_t bytes) const { return SameNode(rank, peer) ? 0 : bytes; }

  // --- ours
  Messages Dispatch(int32_t round) const {
    return Make([&](int32_t rank, int32_t peer) {
      const int64_t rows = workload_.RowsInRound(rank, peer, round) * layout_.DispatchRowBytes();
      const int64_t offset =
          round == 0 ? layout_.DispatchPayloadOffset(workload_.Rows(rank, peer), workload_.Entries(rank, peer))
                     : layout_.PlainPayloadOffset();
      return OffNode(rank, peer, offset + rows);
    });
  }
  Messages Combine(int32_t round) const {
    return Make([&](int32_t rank, int32_t peer) {
      return OffNode(rank, peer, layout_.CombineMessageBytes(workload_.RowsInRound(peer, rank, round), false));
    });
  }

  // --- the paper's
  Messages Routes() const {
    return Make([&](int32_t, int32_t) { return int64_t{4} * options_.experts; });
  }
  Messages Private() const {
    return Make([&](int32_t rank, int32_t peer) {
      const int64_t rows = std::min<int64_t>(workload_.Entries(rank, peer), options_.private_tokens);
      return SameNode(rank, peer) ? -1 : rows * PaperRowBytes();
    });
  }
  Messages Others() const {
    return Make([&](int32_t rank, int32_t peer) {
      const int64_t rows = workload_.Entries(rank, peer) - options_.private_tokens;
      return SameNode(rank, peer) || rows <= 0 ? -1 : rows * PaperRowBytes();
    });
  }
  Messages PaperCombine() const {
    return Make([&](int32_t rank, int32_t peer) {
      return SameNode(rank, peer) ? -1 : workload_.Entries(peer, rank) * layout_.CombineRowBytes();
    });
  }
  Messages Barrier() const {
    return Make([](int32_t, int32_t) { return int64_t{0}; });
  }

 private:
  int64_t PaperRowBytes() const {
    return options_.hidden + kernels::AlignUp(4 * layout_.ScalesOfRow(), 16) + kPaperRowHeaderBytes;
  }

  const ModelOptions& options_;
  const kernels::SlotLayout layout_;
  const Workload& workload_;
};

// A stage of a call: its messages, and what every rank waits for.
struct Stage {
  Messages messages;
  std::vector<int64_t> arrivals;
  Stage() = default;
  explicit Stage(Messages made) : messages(std::move(made)), arrivals(CallPlan::Arrivals(messages)) {}
};

class ProgramModel {
 public:
  explicit ProgramModel(const ModelOptions& options) : options_(options), kernels_(options.kernels) {}

  Result<ModelTimes> Run() {
    for (int32_t call = 0; call < options_.calls; ++call) PlanCall(call);
    JF_ASSIGN_OR_RETURN(ranks_, ModelRanks::Create(options_, /*copied_bytes=*/0));
    JF_RETURN_IF_ERROR(Connect());
    for (int32_t rank = 0; rank < options_.Run(); ++rank) Launch(rank, 0, ranks_->now_ns());
    JF_RETURN_IF_ERROR(ranks_->RunUntil([this] { return Failed() != nullptr || ended_ == options_.Run(); }));
    if (const ProgramRank* failed = Failed()) return tl::unexpected<Error>(*failed->error());
    for (const ProgramRank& rank : programs_) {
      times_.writes += rank.writes();
      times_.wire_bytes += rank.wire_bytes();
    }
    const uint64_t pairs = static_cast<uint64_t>(options_.Run()) * options_.calls;
    times_.writes /= pairs;
    times_.wire_bytes /= pairs;
    return times_;
  }

 private:
  struct Call {
    // kRounds: one stage a round. kTwoPhases: routes, private rows and the others; one of combine; the barrier.
    std::vector<Stage> dispatch;
    std::vector<Stage> combine;
    Stage barrier;
    std::vector<std::vector<double>> shares;  // [rank][round]
  };
  bool two_phases() const { return options_.protocol == Protocol::kTwoPhases; }

  void PlanCall(int32_t number) {
    const Workload workload(options_, options_.seed + number);
    const CallPlan plan(options_, workload);
    Call& call = calls_.emplace_back();
    if (two_phases()) {
      call.dispatch = {Stage(plan.Routes()), Stage(plan.Private()), Stage(plan.Others())};
      call.combine = {Stage(plan.PaperCombine())};
      call.barrier = Stage(plan.Barrier());
      return;
    }
    for (int32_t round = 0; round < workload.rounds(); ++round) {
      call.dispatch.emplace_back(plan.Dispatch(round));
      call.combine.emplace_back(plan.Combine(round));
    }
    for (int32_t rank = 0; rank < options_.Run(); ++rank) {
      std::vector<double>& shares = call.shares.emplace_back();
      for (int32_t round = 0; round < workload.rounds(); ++round) shares.push_back(workload.ShareOfRound(rank, round));
    }
  }

  Status Connect() {
    const kernels::SlotLayout layout = options_.Config().layout;
    // Longer than any message.
    const int64_t memory_bytes = layout.SlotBytes() +
                                 int64_t{options_.tokens} * options_.top_k * layout.CombineRowBytes() +
                                 int64_t{8} * options_.experts;
    programs_.reserve(options_.Run());
    for (int32_t rank = 0; rank < options_.Run(); ++rank) {
      JF_ASSIGN_OR_RETURN(ProgramRank program, ProgramRank::Create(*ranks_, rank, memory_bytes));
      programs_.push_back(std::move(program));
    }
    for (const ProgramRank& program : programs_) introductions_.push_back(&program.introduction());
    for (ProgramRank& program : programs_) JF_RETURN_IF_ERROR(program.Connect(introductions_));
    return {};
  }
  const ProgramRank* Failed() const {
    const auto found = std::find_if(programs_.begin(), programs_.end(), [](const ProgramRank& p) { return p.error(); });
    return found == programs_.end() ? nullptr : &*found;
  }

  // Even numbers are dispatches, each followed by its combine.
  void Launch(int32_t rank, int32_t number, int64_t launch_ns) {
    ranks_->At(launch_ns, [this, rank, number, launch_ns] {
      if (!two_phases()) return StartRound(rank, number, 0, launch_ns, launch_ns);
      number % 2 == 0 ? StartTwoPhases(rank, number, launch_ns) : StartPaperCombine(rank, number, launch_ns);
    });
  }

  void End(int32_t rank, int32_t number, int64_t launch_ns, int64_t end_ns) {
    (number % 2 == 0 ? times_.dispatch_us : times_.combine_us)
        .push_back(static_cast<double>(end_ns - launch_ns) * 1e-3);
    if (number + 1 == 2 * options_.calls) {
      ++ended_;
    } else {
      Launch(rank, number + 1, end_ns + options_.between_ns);
    }
  }

  // --- ours: every round is one exchange with everybody, and no barrier

  void StartRound(int32_t rank, int32_t number, size_t round, int64_t launch_ns, int64_t ready_ns) {
    Call& call = calls_[number / 2];
    const bool dispatch = number % 2 == 0;
    Stage& stage = (dispatch ? call.dispatch : call.combine)[round];
    const double share = call.shares[rank][round];
    const int64_t send_ns = dispatch ? kernels_.dispatch_send_ns : kernels_.combine_send_ns;
    const int64_t first_ns = std::min(send_ns, kernels_.launch_ns);
    const int64_t packed_ns = ready_ns + (round == 0 ? first_ns : 0) + Scaled(send_ns - first_ns, share);
    const Signal signal = exchanges_[rank]++ % 2 == 0 ? Signal::kRows : Signal::kOddRows;
    programs_[rank].Post(packed_ns, signal, stage.messages[rank], kernels_.host_ns);
    programs_[rank].Expect(signal, stage.arrivals[rank], [this, rank, number, round, launch_ns, packed_ns, share] {
      const bool is_dispatch = number % 2 == 0;
      const int64_t receive_ns = is_dispatch ? kernels_.dispatch_receive_ns : kernels_.combine_receive_ns;
      const int64_t end_ns = std::max(ranks_->now_ns(), packed_ns) + Scaled(receive_ns, share);
      if (round + 1 < calls_[number / 2].dispatch.size()) return StartRound(rank, number, round + 1, launch_ns, end_ns);
      End(rank, number, launch_ns, end_ns);
    });
  }

  // --- the paper's

  void StartTwoPhases(int32_t rank, int32_t number, int64_t launch_ns) {
    Call& call = calls_[number / 2];
    ProgramRank& program = programs_[rank];
    const int64_t sent_ns = launch_ns + kernels_.dispatch_send_ns;
    // The buffers are free when everybody has ended the call before: of the first one, from the start.
    program.Expect(
        Signal::kBarrier, number == 0 ? 0 : call.barrier.arrivals[rank], [&, rank, number, launch_ns, sent_ns] {
          const int64_t now = ranks_->now_ns();
          program.Post(std::max(now, launch_ns + kernels_.launch_ns), Signal::kRoutes, call.dispatch[0].messages[rank],
                       kernels_.host_ns);
          program.Post(std::max(now, sent_ns), Signal::kRows, call.dispatch[1].messages[rank], kernels_.host_ns);
          program.Expect(Signal::kRoutes, call.dispatch[0].arrivals[rank], [&, rank, number, launch_ns, sent_ns] {
            // Where everybody's rows go is known now.
            program.Post(std::max(ranks_->now_ns(), sent_ns), Signal::kRows, call.dispatch[2].messages[rank],
                         kernels_.host_ns);
            const int64_t rows = call.dispatch[1].arrivals[rank] + call.dispatch[2].arrivals[rank];
            program.Expect(Signal::kRows, rows, [this, rank, number, launch_ns, sent_ns] {
              PaperEnd(rank, number, launch_ns, std::max(ranks_->now_ns(), sent_ns) + kernels_.dispatch_receive_ns);
            });
          });
        });
  }

  void StartPaperCombine(int32_t rank, int32_t number, int64_t launch_ns) {
    Call& call = calls_[number / 2];
    ProgramRank& program = programs_[rank];
    const int64_t sent_ns = launch_ns + kernels_.combine_send_ns;
    program.Expect(Signal::kBarrier, call.barrier.arrivals[rank], [&, rank, number, launch_ns, sent_ns] {
      program.Post(std::max(ranks_->now_ns(), sent_ns), Signal::kCombine, call.combine[0].messages[rank],
                   kernels_.host_ns);
      program.Expect(Signal::kCombine, call.combine[0].arrivals[rank], [this, rank, number, launch_ns, sent_ns] {
        PaperEnd(rank, number, launch_ns, std::max(ranks_->now_ns(), sent_ns) + kernels_.combine_receive_ns);
      });
    });
  }

  void PaperEnd(int32_t rank, int32_t number, int64_t launch_ns, int64_t end_ns) {
    programs_[rank].Post(end_ns, Signal::kBarrier, calls_[number / 2].barrier.messages[rank], kernels_.host_ns);
    End(rank, number, launch_ns, end_ns);
  }

  static int64_t Scaled(int64_t nanoseconds, double share) {
    return static_cast<int64_t>(static_cast<double>(nanoseconds) * share);
  }

  const ModelOptions& options_;
  const KernelTimes& kernels_;
  std::vector<Call> calls_;
  std::vector<ProgramRank> programs_;
  std::vector<const ProgramRank::Introduction*> introductions_;
  std::vector<int64_t> exchanges_ = std::vector<int64_t>(options_.Run());
  ModelTimes times_;
  int32_t ended_ = 0;
  std::unique_ptr<ModelRanks> ranks_;  // goes first: its engines call the programs
};

}  // namespace

Result<ModelTimes> RunProgramModel(const ModelOptions& options) { return ProgramModel(options).Run(); }

}  // namespace jax_fabric::moe::model
