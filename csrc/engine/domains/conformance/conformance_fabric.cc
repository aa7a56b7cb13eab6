#include "csrc/engine/domains/conformance/conformance_fabric.h"

#include <map>
#include <string_view>
#include <utility>

namespace jax_fabric::conformance {
namespace {

std::map<std::string, FabricFactory>& Factories() {
  static auto* factories = new std::map<std::string, FabricFactory>();
  return *factories;
}

}  // namespace

std::shared_ptr<const FabricKey> ConformanceKey() {
  static constexpr std::string_view kSecret = "the secret of the conformance suites";
  return FabricKey::Create(Secret::From(std::as_bytes(std::span(kSecret))).value()).value();
}

bool RegisterConformanceFabric(const std::string& name, FabricFactory factory) {
  return Factories().emplace(name, std::move(factory)).second;
}

std::unique_ptr<ConformanceFabric> MakeConformanceFabric(const std::string& name) {
  const auto found = Factories().find(name);
  return found == Factories().end() ? nullptr : found->second();
}

}  // namespace jax_fabric::conformance
