// Libraries that are opened at run time, each once in a process.
#ifndef JAX_FABRIC_BASE_LOAD_ONCE_H_
#define JAX_FABRIC_BASE_LOAD_ONCE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "csrc/base/status.h"

namespace jax_fabric {

// What `open` makes of the library with that name (a file name or path; empty: the system's) the first time that it
// succeeds; it stays for ever. Any thread.
template <typename Library>
Result<const Library*> LoadOnce(const std::string& name,
                                Result<std::unique_ptr<Library>> (*open)(const std::string& name)) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Library>> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = loaded[name];
  if (!entry) {
    JF_ASSIGN_OR_RETURN(entry, open(name));
  }
  return entry.get();
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_LOAD_ONCE_H_
