#include "csrc/moe/call_identifier.h"

#include <xxhash.h>

namespace jax_fabric::moe {

Result<uint64_t> CallIdentifier::Identify(const CallSite& site, int64_t run) {
  const auto [entry, is_new] = sites_.try_emplace(site.serial);
  SiteState& state = entry->second;
  if (is_new || state.run != run) {
    KeyState& key = keys_[site.key];
    if (key.run != run) key = KeyState{run, 0, 0};
    if (!one_process_ && key.sites > 0 && site.serial < key.last_serial) {
      return MakeError(ErrorCode::kFailedPrecondition,
                       "two calls of one jitted function are independent, and the ranks could take one for the other. "
                       "Pass the first call's result to the second one as after=, or give them different channel=");
    }
    state = SiteState{run, key.sites, 0};
    key.last_serial = site.serial;
    ++key.sites;
  }
  const uint64_t which = one_process_ ? site.serial : state.ordinal;
  const uint64_t fields[] = {site.key, static_cast<uint64_t>(run), which, state.executions++};
  return XXH3_64bits(fields, sizeof(fields));
}

}  // namespace jax_fabric::moe
