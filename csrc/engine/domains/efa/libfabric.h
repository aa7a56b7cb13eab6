// The functions of libfabric that are real symbols, opened at run time: everything else in its headers is inline and
// goes through tables of the objects. Nothing is opened before the first domain is made: it takes up to 200 ms.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_LIBFABRIC_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_LIBFABRIC_H_

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <string>

#include "csrc/base/status.h"

namespace jax_fabric::efa {

#define JF_LIBFABRIC_SYMBOLS(X) \
  X(fi_getinfo)                 \
  X(fi_freeinfo)                \
  X(fi_dupinfo)                 \
  X(fi_fabric)                  \
  X(fi_strerror)                \
  X(fi_version)

struct Libfabric {
#define JF_DECLARE(name) decltype(&::name) name = nullptr;
  JF_LIBFABRIC_SYMBOLS(JF_DECLARE)
#undef JF_DECLARE

  // Stays open for the life of the process. `library`: a file name or path; empty: the system's, or that of Amazon's
  // installer.
  static Result<const Libfabric*> Load(const std::string& library);

  std::string Version() const;
  // "Operation canceled (libfabric error 125)"; `error` may have either sign.
  std::string Words(int64_t error) const;
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_LIBFABRIC_H_
