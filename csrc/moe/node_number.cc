#include "csrc/moe/node_number.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "csrc/engine/domains/local/process_identity.h"

namespace jax_fabric::moe {

Result<uint64_t> NodeNumber(const std::string& name) {
  std::string text = "name " + name;
  if (name.empty()) {
    JF_ASSIGN_OR_RETURN(const local::ProcessIdentity self, local::ProcessIdentity::Self());
    std::error_code ignored;  // without the file there is one namespace
    const auto ipc = std::filesystem::read_symlink("/proc/self/ns/ipc", ignored);
    text = fmt::format("machine {} {}", self.machine, ipc.string());
  }
  return std::max<uint64_t>(1, XXH3_64bits(text.data(), text.size()));
}

}  // namespace jax_fabric::moe
