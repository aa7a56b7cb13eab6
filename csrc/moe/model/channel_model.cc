#include "csrc/moe/model/channel_model.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/executor.h"
#include "csrc/moe/context.h"
#include "csrc/moe/model/model_ranks.h"
#include "csrc/moe/model/modelled_call.h"
#include "csrc/moe/model/workload.h"

namespace jax_fabric::moe::model {
namespace {

// Of the longest metadata in a message: so many bytes of each are really copied.
uint64_t MetadataBytes(const ModelOptions& options, const std::vector<Workload>& workloads) {
  const kernels::SlotLayout layout = options.Config().layout;
  int64_t most = layout.PlainPayloadOffset();
  for (const Workload& workload : workloads) {
    for (int32_t source = 0; source < options.ranks; ++source) {
      for (int32_t target = 0; target < options.ranks; ++target) {
        const int64_t rows = workload.Rows(source, target);
        most = std::max(most, layout.DispatchPayloadOffset(rows, workload.Entries(source, target)));
      }
    }
  }
  return static_cast<uint64_t>(most);
}

class ChannelModel {
 public:
  ChannelModel(const ModelOptions& options, const std::vector<Workload>& workloads)
      : options_(options), workloads_(workloads), devices_(options.ranks), calls_(options.ranks) {}
  ~ChannelModel() {
    if (ranks_ == nullptr) return;
    static_cast<void>(ranks_->RunUntil([this] {
      bool closed = true;
      for (const auto& context : contexts_) closed = context->Close(ranks_->In(0)) && closed;
      return closed;
    }));
  }

  Result<ModelTimes> Run() {
    JF_ASSIGN_OR_RETURN(ranks_, ModelRanks::Create(options_, MetadataBytes(options_, workloads_)));
    JF_RETURN_IF_ERROR(Connect());
    for (int32_t rank = 0; rank < options_.ranks; ++rank) Launch(rank, 0, ranks_->now_ns());
    JF_RETURN_IF_ERROR(ranks_->RunUntil([this] { return error_ || ended_ == options_.ranks; }));
    if (error_) return tl::unexpected<Error>(*error_);
    for (const ModelDevice& device : devices_) {
      times_.writes += device.writes;
      times_.wire_bytes += device.wire_bytes;
    }
    const uint64_t pairs = static_cast<uint64_t>(options_.ranks) * options_.calls;
    times_.writes /= pairs;
    times_.wire_bytes /= pairs;
    return times_;
  }

 private:
  Status Connect() {
    std::vector<Bytes> introductions;
    for (int32_t rank = 0; rank < options_.ranks; ++rank) {
      MoeConfig config = options_.Config();
      config.layout.shape.rank = rank;
      JF_ASSIGN_OR_RETURN(auto context, Context::Create(config, (*ranks_)[rank].group, &executor_));
      contexts_.push_back(std::move(context));
      JF_ASSIGN_OR_RETURN(Bytes introduction, contexts_.back()->Introduction());
      introductions.push_back(std::move(introduction));
    }
    for (const auto& context : contexts_) JF_RETURN_IF_ERROR(context->Connect(introductions, ranks_->In(10'000'000)));
    return {};
  }

  // Call `number` of the rank: even ones are dispatches, each followed by its combine.
  void Launch(int32_t rank, int32_t number, int64_t launch_ns) {
    const ModelledCall::Setting setting{options_, contexts_[rank]->config().layout, workloads_[number / 2], *ranks_,
                                        devices_[rank]};
    const auto kind = number % 2 == 0 ? kernels::ExchangeKind::kDispatch : kernels::ExchangeKind::kCombine;
    const auto on_end = [this, rank, number, launch_ns](const Error* error, int64_t end_ns) {
      End(rank, number, launch_ns, error, end_ns);
    };
    calls_[rank].push_back(std::make_unique<ModelledCall>(setting, number, kind, on_end));
    ranks_->At(launch_ns + ModelledCall::FirstSendNs(setting, kind),
               [this, rank] { contexts_[rank]->channel(0)->Submit(calls_[rank].back().get()); });
  }

  void End(int32_t rank, int32_t number, int64_t launch_ns, const Error* error, int64_t end_ns) {
    if (error != nullptr) {
      if (!error_ && error->code != ErrorCode::kCancelled) error_ = *error;
      return;
    }
    (number % 2 == 0 ? times_.dispatch_us : times_.combine_us)
        .push_back(static_cast<double>(end_ns - launch_ns) * 1e-3);
    if (number + 1 == 2 * options_.calls) {
      ++ended_;
    } else {
      Launch(rank, number + 1, end_ns + options_.between_ns);
    }
  }

  const ModelOptions& options_;
  const std::vector<Workload>& workloads_;
  std::vector<ModelDevice> devices_;
  std::vector<std::vector<std::unique_ptr<ModelledCall>>> calls_;  // [rank]
  InlineExecutor executor_;
  std::unique_ptr<ModelRanks> ranks_;
  std::vector<std::unique_ptr<Context>> contexts_;
  ModelTimes times_;
  std::optional<Error> error_;
  int32_t ended_ = 0;
};

}  // namespace

Result<ModelTimes> RunChannelModel(const ModelOptions& options) {
  std::vector<Workload> workloads;
  for (int32_t call = 0; call < options.calls; ++call) workloads.emplace_back(options, options.seed + call);
  return ChannelModel(options, workloads).Run();
}

}  // namespace jax_fabric::moe::model
