// A program of another workspace that is built on jax_fabric's engine.
#include <cstdio>
#include <memory>

#include "csrc/engine/transfer_engine.h"

int main() {
  auto engine = jax_fabric::TransferEngine::Create({});
  if (!engine.has_value()) {
    std::fprintf(stderr, "no engine: %s\n", engine.error().message.c_str());
    return 1;
  }
  const auto deadline = jax_fabric::Deadline::After((*engine)->clock(), 1'000'000);
  const jax_fabric::Status closed = (*engine)->Close(deadline);
  std::puts(closed.has_value() ? "opened and closed" : closed.error().message.c_str());
  return closed.has_value() ? 0 : 1;
}
