#include "csrc/base/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace jax_fabric {
namespace {

constexpr std::string_view kPrefix = "JAX_FABRIC_";

constexpr std::string_view kBuildVariables[] = {"BAZEL_ARGS", "CUDA",           "INCLUDE_PATH", "JAXLIB",
                                                "NANOBIND",   "PYTHON_INCLUDE", "RDMA"};

// Understands a value and stores it, or says no.
using Parser = bool (*)(std::string_view value, Config& config);

struct Variable {
  std::string_view name;  // without the prefix
  std::string_view accepted;
  Parser parse;
};

std::optional<int64_t> Integer(std::string_view text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) return std::nullopt;
  return value;
}

template <typename T, size_t kCount>
bool OneOf(std::string_view text, const std::pair<std::string_view, T> (&choices)[kCount], T& out) {
  for (const auto& [name, value] : choices) {
    if (text != name) continue;
    out = value;
    return true;
  }
  return false;
}

template <auto kMember, int64_t kLeast, int64_t kMost>
bool ParseInteger(std::string_view text, Config& config) {
  const std::optional<int64_t> value = Integer(text, kLeast, kMost);
  if (value.has_value()) config.*kMember = static_cast<std::remove_reference_t<decltype(config.*kMember)>>(*value);
  return value.has_value();
}

bool ParseIdle(std::string_view text, Config& config) {
  using Idle = Config::Idle;
  static constexpr std::pair<std::string_view, Idle> kChoices[] = {
      {"adaptive", Idle::kAdaptive}, {"spin", Idle::kSpin}, {"sleep", Idle::kSleep}};
  return OneOf(text, kChoices, config.idle);
}

bool ParseLog(std::string_view text, Config& config) {
  static constexpr std::pair<std::string_view, LogLevel> kChoices[] = {{"debug", LogLevel::kDebug},
                                                                       {"info", LogLevel::kInfo},
                                                                       {"warning", LogLevel::kWarning},
                                                                       {"error", LogLevel::kError},
                                                                       {"off", LogLevel::kOff}};
  return OneOf(text, kChoices, config.log);
}

bool ParseSoak(std::string_view text, Config& config) {
  static constexpr std::pair<std::string_view, bool> kChoices[] = {{"0", false}, {"1", true}};
  return OneOf(text, kChoices, config.soak);
}

bool ParseSeeds(std::string_view text, Config& config) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - 1;
  const size_t dash = std::min(text.find('-'), text.size());
  const std::optional<int64_t> first = Integer(text.substr(0, dash), 0, kMost);
  if (!first.has_value()) return false;
  std::optional<int64_t> end = *first + 1;
  if (dash < text.size()) end = Integer(text.substr(dash + 1), *end, kMost + 1);
  if (!end.has_value()) return false;
  config.seeds = {static_cast<uint64_t>(*first), static_cast<uint64_t>(*end)};
  return true;
}

bool ParseDomain(std::string_view text, Config& config) {
  config.domain = text;
  return text == "local" || text == "efa" || text == "connectx";
}

template <std::string Config::* kMember>
bool ParseName(std::string_view text, Config& config) {
  config.*kMember = text;
  return !text.empty();
}

constexpr size_t kMostNics = 4;  // of a group

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

bool AreDistinctNames(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return !names.front().empty() && std::adjacent_find(names.begin(), names.end()) == names.end();
}

bool ParseNics(std::string_view text, Config& config) {
  if (text.starts_with('^')) {
    config.nics.exclude = Split(text.substr(1), ',');
    return AreDistinctNames(config.nics.exclude);
  }
  for (const std::string& group : Split(text, ';')) {
    config.nics.groups.push_back(Split(group, ','));
    const std::vector<std::string>& names = config.nics.groups.back();
    if (names.size() > kMostNics || !AreDistinctNames(names)) return false;
  }
  return true;
}

constexpr Variable kVariables[] = {
    {"SPIN_US", "0 to 1000000000 (microseconds)", ParseInteger<&Config::spin_us, 0, 1'000'000'000>},
    {"YIELD_US", "0 to 1000000000 (microseconds)", ParseInteger<&Config::yield_us, 0, 1'000'000'000>},
    {"IDLE", "adaptive, spin or sleep", ParseIdle},
    {"WORKERS", "0 to 1024 (threads; 0: chosen by the engine)", ParseInteger<&Config::workers, 0, 1024>},
    {"LOG", "debug, info, warning, error or off", ParseLog},
    {"SECRET_FILE", "the path of a file with the fabric's secret", ParseName<&Config::secret_file>},
    {"DOMAIN", "local, efa or connectx", ParseDomain},
    {"EFA_PROVIDER", "a provider of libfabric: efa, or tcp for development", ParseName<&Config::efa_provider>},
    {"EFA_ADDRESS", "an address of this machine, as 10.0.0.5", ParseName<&Config::efa_address>},
    {"NICS",
     "names of 1 to 4 NICs, each once, as mlx5_0,mlx5_1; with ';' between those of each local device; or ^ and the "
     "names "
     "of NICs that must not be used",
     ParseNics},
    {"CONNECTX_LIBRARY", "libibverbs by file name or path", ParseName<&Config::connectx_library>},
    {"GDRCOPY_LIBRARY", "libgdrapi by file name or path", ParseName<&Config::gdrcopy_library>},
    {"SOAK", "0 or 1", ParseSoak},
    {"SEEDS", "a seed, or FIRST-END with END above FIRST and not among them", ParseSeeds},
};

std::string AcceptedNames() {
  std::string names;
  for (const Variable& variable : kVariables) {
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", kPrefix, variable.name);
  }
  return names;
}

}  // namespace

Result<Config> ParseConfig(std::span<const std::string> environment) {
  Config config;
  for (const std::string_view entry : environment) {
    if (!entry.starts_with(kPrefix)) continue;
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view name = entry.substr(0, equals);
    const std::string_view value = entry.substr(std::min(equals + 1, entry.size()));
    const std::string_view suffix = name.substr(kPrefix.size());
    if (std::find(std::begin(kBuildVariables), std::end(kBuildVariables), suffix) != std::end(kBuildVariables))
      continue;
    const auto* variable =
        std::find_if(std::begin(kVariables), std::end(kVariables), [&](const Variable& v) { return v.name == suffix; });
    if (variable == std::end(kVariables)) {
      return MakeError(ErrorCode::kInvalidArgument, "environment variable {} is not known; known are {}", name,
                       AcceptedNames());
    }
    if (!variable->parse(value, config)) {
      return MakeError(ErrorCode::kInvalidArgument, "environment variable {}: '{}' is not accepted; give {}", name,
                       value, variable->accepted);
    }
  }
  return config;
}

Result<Config> LoadConfig() {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return ParseConfig(environment);
}

}  // namespace jax_fabric
