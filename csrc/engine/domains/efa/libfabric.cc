#include "csrc/engine/domains/efa/libfabric.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "csrc/base/load_once.h"
#include "csrc/base/saved_signal_actions.h"

namespace jax_fabric::efa {
namespace {

Result<std::unique_ptr<Libfabric>> Open(const std::string& library) {
  std::vector<std::string> names = {library};
  if (library.empty()) {
    names = {"libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1"};
  }
  std::string reasons;
  const SavedSignalActions signals;
  for (const std::string& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", reason == nullptr ? name.c_str() : reason);
      continue;
    }
    auto loaded = std::make_unique<Libfabric>();
    const char* missing = nullptr;
#define JF_LOOK_UP(symbol)                                                        \
  loaded->symbol = reinterpret_cast<decltype(&::symbol)>(dlsym(handle, #symbol)); \
  if (loaded->symbol == nullptr) missing = #symbol;
    JF_LIBFABRIC_SYMBOLS(JF_LOOK_UP)
#undef JF_LOOK_UP
    if (missing == nullptr) return loaded;
    dlclose(handle);
    reasons += fmt::format("{}{} has no {}", reasons.empty() ? "" : "; ", name, missing);
  }
  return MakeError(ErrorCode::kNotFound,
                   "libfabric cannot be opened ({}): install it (apt-get install libfabric1, or Amazon's EFA "
                   "installer), or name the library",
                   reasons);
}

}  // namespace

Result<const Libfabric*> Libfabric::Load(const std::string& library) { return LoadOnce(library, Open); }

std::string Libfabric::Version() const {
  const uint32_t version = fi_version();
  return fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

std::string Libfabric::Words(int64_t error) const {
  const int code = static_cast<int>(std::abs(error));
  return fmt::format("{} (libfabric error {})", fi_strerror(code), code);
}

}  // namespace jax_fabric::efa
