#include "csrc/moe/model/model_options.h"

#include <algorithm>

#include "csrc/moe/model/channel_model.h"
#include "csrc/moe/model/program_model.h"

namespace jax_fabric::moe::model {
namespace {

Status Check(bool ok, const char* name, int64_t value, const char* accepted) {
  if (ok) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{}={}: must be {}", name, value, accepted);
}

}  // namespace

Status ModelOptions::Validate() const {
  JF_RETURN_IF_ERROR(Check(ranks >= 2 && ranks <= 4096, "ranks", ranks, "in [2, 4096]"));
  JF_RETURN_IF_ERROR(Check(representatives == 0 || (representatives >= 2 && representatives <= ranks),
                           "representatives", representatives, "0, or in [2, ranks]"));
  JF_RETURN_IF_ERROR(Check(representatives == 0 || protocol != Protocol::kChannel, "representatives", representatives,
                           "0 for this library's channels: every rank of them is real"));
  JF_RETURN_IF_ERROR(Check(node_ranks >= 1, "node_ranks", node_ranks, "at least 1"));
  JF_RETURN_IF_ERROR(Check(experts >= 1 && experts <= 1 << 20, "experts", experts, "in [1, 2^20]"));
  JF_RETURN_IF_ERROR(Check(top_k >= 1 && top_k <= experts, "top_k", top_k, "in [1, experts]"));
  JF_RETURN_IF_ERROR(Check(tokens >= 1 && tokens <= 1 << 16, "tokens", tokens, "in [1, 65536]"));
  JF_RETURN_IF_ERROR(Check(hidden >= 1 && hidden <= 1 << 20, "hidden", hidden, "in [1, 2^20]"));
  JF_RETURN_IF_ERROR(Check(private_tokens >= 1, "private_tokens", private_tokens, "at least 1"));
  JF_RETURN_IF_ERROR(Check(calls >= 1 && calls <= 1000, "calls", calls, "in [1, 1000]"));
  JF_RETURN_IF_ERROR(Check(nic.bytes_per_ns > 0, "bytes_per_ns", static_cast<int64_t>(nic.bytes_per_ns), "above 0"));
  JF_RETURN_IF_ERROR(Check(nic.latency_ns >= 0, "latency_ns", nic.latency_ns, "at least 0"));
  return Config().Validate();
}

MoeConfig ModelOptions::Config() const {
  MoeConfig config;
  kernels::MoeShape& shape = config.layout.shape;
  shape.ranks = ranks;
  shape.experts = experts;
  shape.experts_per_rank = (experts + ranks - 1) / ranks;
  shape.max_tokens = tokens;
  shape.private_tokens = private_tokens;
  shape.top_k = top_k;
  shape.hidden = hidden;
  shape.capacity = std::min<int64_t>(int64_t{ranks} * tokens * shape.LocalTopK(), INT32_MAX);
  config.layout.dispatch_type = kernels::ElementType::kFloat8E4m3fn;
  config.layout.quantised = true;
  config.layout.combine_type = kernels::ElementType::kBfloat16;
  config.layout.redispatch_type = kernels::ElementType::kBfloat16;
  config.channels = 1;
  config.timeout_us = 1'000'000'000;
  return config;
}

Result<ModelTimes> RunModel(const ModelOptions& options) {
  JF_RETURN_IF_ERROR(options.Validate());
  return options.protocol == Protocol::kChannel ? RunChannelModel(options) : RunProgramModel(options);
}

}  // namespace jax_fabric::moe::model
