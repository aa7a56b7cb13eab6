#include "csrc/moe/call_identifier.h"

#include <xxhash.h>

namespace jax_fabric::moe {
namespace {

uint64_t HashOf(uint64_t key, uint64_t launch, uint64_t site, uint64_t execution) {
  const uint64_t fields[] = {key, launch, site, execution};
  return XXH3_64bits(fields, sizeof(fields));
}

// XLA's numbers of a program's launches rise by one, in 32 bits, from anywhere.
bool IsBefore(int64_t run, int64_t other) {
  return static_cast<int32_t>(static_cast<uint32_t>(run) - static_cast<uint32_t>(other)) < 0;
}

}  // namespace

Result<uint64_t> CallIdentifier::Identify(const CallSite& site, int64_t run) {
  const auto [entry, is_new] = sites_.try_emplace(site.serial);
  SiteState& state = entry->second;
  const bool is_first = is_new || state.run != run;  // of this site in this run
  if (one_process_) {
    if (is_first) state = SiteState{run, 0, 0};
    return HashOf(site.key, static_cast<uint64_t>(run), site.serial, state.executions++);
  }
  KeyState& key = keys_[site.key];
  if (key.launches == 0 || key.run != run) {
    if (!is_new && (state.run == run || IsBefore(run, state.run))) {
      return MakeError(
          ErrorCode::kFailedPrecondition,
          "two launches of a program, or of programs of the same name and shapes, run at the same time, and "
          "other processes could take one for the other: launch them from one thread, or give threads "
          "a channel= of their own");
    }
    key = KeyState{run, key.launches + 1, 0, 0};
  }
  if (is_first) {
    if (key.sites > 0 && site.serial < key.last_serial) {
      return MakeError(ErrorCode::kFailedPrecondition,
                       "two calls of one jitted function are independent, and the ranks could take one for the other. "
                       "Pass the first call's result to the second one as after=, or give them different channel=");
    }
    state = SiteState{run, key.sites, 0};
    key.last_serial = site.serial;
    ++key.sites;
  }
  return HashOf(site.key, key.launches, state.ordinal, state.executions++);
}

}  // namespace jax_fabric::moe
