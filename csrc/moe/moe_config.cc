#include "csrc/moe/moe_config.h"

#include <xxhash.h>

#include <algorithm>

#include "csrc/moe/announcement_ring.h"

namespace jax_fabric::moe {

int64_t MoeConfig::MemoryBytes() const { return RingOffset(channels); }

int64_t MoeConfig::RingOffset(int32_t channel) const {
  return channels * layout.ChannelBytes() + channel * AnnouncementRing::kBytes;
}

int32_t MoeConfig::PresentRanks() const {
  return layout.shape.ranks -
         static_cast<int32_t>(std::count_if(absent.begin(), absent.end(), [](uint8_t each) { return each != 0; }));
}

int32_t MoeConfig::Leader() const {
  int32_t rank = 0;
  while (IsAbsent(rank)) ++rank;
  return rank;
}

Status MoeConfig::Validate() const {
  const kernels::MoeShape& s = layout.shape;
  const auto check = [](bool ok, const char* name, int64_t value, const char* accepted) -> Status {
    if (ok) return {};
    return MakeError(ErrorCode::kInvalidArgument, "{}={}: must be {}", name, value, accepted);
  };
  JF_RETURN_IF_ERROR(check(s.ranks >= 1, "ranks", s.ranks, "at least 1"));
  JF_RETURN_IF_ERROR(check(s.rank >= 0 && s.rank < s.ranks, "rank", s.rank, "in [0, ranks)"));
  JF_RETURN_IF_ERROR(check(s.experts >= 1, "num_experts", s.experts, "at least 1"));
  JF_RETURN_IF_ERROR(check(s.experts_per_rank == (s.experts + s.ranks - 1) / s.ranks, "experts_per_rank",
                           s.experts_per_rank, "ceil(num_experts / ranks)"));
  JF_RETURN_IF_ERROR(check(s.max_tokens >= 1, "max_tokens", s.max_tokens, "at least 1"));
  JF_RETURN_IF_ERROR(check(s.private_tokens >= 1, "private_tokens", s.private_tokens, "at least 1"));
  JF_RETURN_IF_ERROR(check(s.top_k >= 1 && s.top_k <= s.experts, "top_k", s.top_k, "in [1, num_experts]"));
  JF_RETURN_IF_ERROR(check(s.hidden >= 1, "hidden", s.hidden, "at least 1"));
  JF_RETURN_IF_ERROR(check(s.capacity >= 1 && s.capacity <= INT32_MAX, "capacity", s.capacity, "in [1, 2^31)"));
  constexpr auto kQuantisedType = kernels::ElementType::kFloat8E4m3fn;
  const auto check_type = [&](const char* name, kernels::ElementType type) {
    return check(type != kQuantisedType, name, static_cast<int64_t>(type), "float32, bfloat16 or float16");
  };
  JF_RETURN_IF_ERROR(check_type("combine_type", layout.combine_type));
  JF_RETURN_IF_ERROR(check_type("redispatch_type", layout.redispatch_type));
  JF_RETURN_IF_ERROR(check(layout.quantised == (layout.dispatch_type == kQuantisedType), "quantised", layout.quantised,
                           "true where dispatch_type is float8_e4m3fn, and only there"));
  JF_RETURN_IF_ERROR(check(channels >= 1 && channels <= 64, "channels", channels, "in [1, 64]"));
  JF_RETURN_IF_ERROR(check(absent.empty() || absent.size() == static_cast<size_t>(s.ranks), "ranks in absent",
                           static_cast<int64_t>(absent.size()), "ranks, or none"));
  JF_RETURN_IF_ERROR(check(!IsAbsent(s.rank), "absent rank", s.rank, "another one than this rank"));
  return check(timeout_us >= 1, "timeout_us", timeout_us, "at least 1");
}

uint64_t MoeConfig::Hash() const {
  const kernels::MoeShape& s = layout.shape;
  std::vector<uint8_t> present = absent;
  present.resize(s.ranks);
  const int64_t fields[] = {s.ranks,
                            s.experts_per_rank,
                            s.experts,
                            s.max_tokens,
                            s.top_k,
                            s.hidden,
                            s.capacity,
                            s.MessageRows(),
                            static_cast<int64_t>(layout.dispatch_type),
                            static_cast<int64_t>(layout.combine_type),
                            static_cast<int64_t>(layout.redispatch_type),
                            layout.quantised,
                            channels,
                            drop_overflow,
                            membership_epoch,
                            static_cast<int64_t>(XXH3_64bits(present.data(), present.size()))};
  return XXH3_64bits(fields, sizeof(fields));
}

}  // namespace jax_fabric::moe
