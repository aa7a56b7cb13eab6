#include "csrc/engine/domains/conformance/conformance_fabric.h"

#include <map>
#include <utility>

namespace jax_fabric::conformance {
namespace {

std::map<std::string, FabricFactory>& Factories() {
  static auto* factories = new std::map<std::string, FabricFactory>();
  return *factories;
}

}  // namespace

bool RegisterConformanceFabric(const std::string& name, FabricFactory factory) {
  return Factories().emplace(name, std::move(factory)).second;
}

std::unique_ptr<ConformanceFabric> MakeConformanceFabric(const std::string& name) {
  const auto found = Factories().find(name);
  return found == Factories().end() ? nullptr : found->second();
}

}  // namespace jax_fabric::conformance
