#include "csrc/moe/model/workload.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace jax_fabric::moe::model {
namespace {

// Different experts of one token, in `chosen`.
void DrawExperts(std::mt19937_64& random, int32_t experts, std::vector<int32_t>& chosen) {
  for (size_t k = 0; k < chosen.size();) {
    const auto expert = static_cast<int32_t>(random() % static_cast<uint64_t>(experts));
    if (std::find(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(k), expert) !=
        chosen.begin() + static_cast<ptrdiff_t>(k)) {
      continue;
    }
    chosen[k++] = expert;
  }
}

}  // namespace

Workload::Workload(const ModelOptions& options, uint64_t seed)
    : ranks_(options.ranks),
      rows_(static_cast<size_t>(ranks_) * ranks_),
      entries_(static_cast<size_t>(ranks_) * ranks_),
      rounds_(ranks_) {
  std::mt19937_64 random(seed);
  const int32_t experts_per_rank = (options.experts + ranks_ - 1) / ranks_;
  std::vector<int32_t> chosen(options.top_k);
  std::vector<int32_t> targets;
  for (int32_t source = 0; source < ranks_; ++source) {
    std::vector<std::vector<int32_t>>& rounds = rounds_[source];
    rounds.emplace_back(ranks_);
    for (int32_t token = 0; token < options.tokens; ++token) {
      DrawExperts(random, options.experts, chosen);
      targets.clear();
      for (const int32_t expert : chosen) {
        const int32_t target = expert / experts_per_rank;
        ++entries_[Index(source, target)];
        if (std::find(targets.begin(), targets.end(), target) == targets.end()) targets.push_back(target);
      }
      const bool full = std::any_of(targets.begin(), targets.end(),
                                    [&](int32_t target) { return rounds.back()[target] == options.private_tokens; });
      if (full) rounds.emplace_back(ranks_);
      for (const int32_t target : targets) {
        ++rounds.back()[target];
        ++rows_[Index(source, target)];
      }
    }
    all_rounds_ = std::max(all_rounds_, RoundsOf(source));
  }
}

int64_t Workload::RowsInRound(int32_t source, int32_t target, int32_t round) const {
  return round < RoundsOf(source) ? rounds_[source][round][target] : 0;
}

int64_t Workload::FirstRow(int32_t source, int32_t target, int32_t round) const {
  int64_t rows = 0;
  for (int32_t r = 0; r < round; ++r) rows += RowsInRound(source, target, r);
  return rows;
}

int64_t Workload::EntriesFor(int32_t target) const {
  int64_t entries = 0;
  for (int32_t source = 0; source < ranks_; ++source) entries += Entries(source, target);
  return entries;
}

double Workload::ShareOfRound(int32_t source, int32_t round) const {
  if (round >= RoundsOf(source)) return 0;
  const std::vector<int32_t>& rows = rounds_[source][round];
  const int64_t in_round = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const auto begin = rows_.begin() + static_cast<ptrdiff_t>(Index(source, 0));
  const int64_t all = std::accumulate(begin, begin + ranks_, int64_t{0});
  return all == 0 ? 0 : static_cast<double>(in_round) / static_cast<double>(all);
}

}  // namespace jax_fabric::moe::model
