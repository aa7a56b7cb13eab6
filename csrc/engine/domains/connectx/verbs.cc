#include "csrc/engine/domains/connectx/verbs.h"

#include <dlfcn.h>

#include <cstring>
#include <memory>

#include "csrc/base/load_once.h"

namespace jax_fabric::connectx {
namespace {

constexpr const char* kSystemLibrary = "libibverbs.so.1";

// The library has older functions of the same names for binaries of its first version.
void* LookUp(void* handle, const char* name) {
  void* symbol = dlvsym(handle, name, "IBVERBS_1.1");
  return symbol != nullptr ? symbol : dlsym(handle, name);
}

Result<std::unique_ptr<Verbs>> Open(const std::string& library) {
  const std::string name = library.empty() ? kSystemLibrary : library;
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return MakeError(ErrorCode::kNotFound,
                     "libibverbs cannot be opened ({}): install it (apt-get install libibverbs1 ibverbs-providers, or "
                     "NVIDIA's DOCA-OFED), or name the library",
                     reason == nullptr ? name : reason);
  }
  auto loaded = std::make_unique<Verbs>();
  const char* missing = nullptr;
#define JF_LOOK_UP(symbol)                                                         \
  loaded->symbol = reinterpret_cast<decltype(&::symbol)>(LookUp(handle, #symbol)); \
  if (loaded->symbol == nullptr) missing = #symbol;
  JF_VERBS_SYMBOLS(JF_LOOK_UP)
#undef JF_LOOK_UP
  loaded->ibv_reg_dmabuf_mr = reinterpret_cast<decltype(&::ibv_reg_dmabuf_mr)>(dlsym(handle, "ibv_reg_dmabuf_mr"));
  if (missing == nullptr) return loaded;
  dlclose(handle);
  return MakeError(ErrorCode::kUnimplemented, "{} has no {}: install rdma-core 32 or newer", name, missing);
}

}  // namespace

Result<const Verbs*> Verbs::Load(const std::string& library) { return LoadOnce(library, Open); }

int Verbs::QueryPort(ibv_context* context, uint8_t port, ibv_port_attr& attributes) const {
  attributes = {};
  if (verbs_context* extended = verbs_get_ctx_op(context, query_port); extended != nullptr) {
    return extended->query_port(context, port, &attributes, sizeof(attributes));
  }
  return (ibv_query_port)(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
}

std::string ErrnoWords(int error) { return fmt::format("{} (errno {})", strerror(error), error); }

}  // namespace jax_fabric::connectx
