#include "csrc/ffi/host/host_simulation.h"

#include <algorithm>
#include <utility>

namespace jax_fabric::ffi_layer {
namespace {

constexpr int64_t kBusyNs = 1'000;
constexpr int64_t kIdleNs = 1'000'000;
constexpr int64_t kCloseTimeoutUs = 10'000'000;

}  // namespace

Result<HostGroup> HostSimulation::AddGroup(const std::string& name, int nics) {
  JF_RETURN_IF_ERROR(CheckThread());
  EngineOptions options;
  options.threads = false;
  options.clock = &clock_;
  options.pump = [this] { Step(); };
  HostGroup made;
  JF_ASSIGN_OR_RETURN(made.engine, HostEngine::CreateWith(std::move(options), shared_from_this()));
  Member member{made.engine, {}};
  GroupOptions group;
  group.name = name;
  for (int i = 0; i < nics; ++i) {
    simulated::SimulatedDomainOptions nic = nic_;
    nic.name = fmt::format("{}:nic{}", name, i);
    auto domain = std::make_unique<simulated::SimulatedDomain>(network_, nic);
    member.nics.push_back(domain.get());
    group.domains.push_back(std::move(domain));
  }
  JF_ASSIGN_OR_RETURN(made.group, made.engine->engine().AddGroup(std::move(group)));
  members_.push_back(std::move(member));
  return made;
}

void HostSimulation::Step() {
  // A callback that waits: nobody else can do anything meanwhile, so its time runs out.
  if (stepping_) return clock_.AdvanceNs(kIdleNs);
  stepping_ = true;
  bool busy = false;
  // By number: a callback may add a group.
  for (size_t i = 0; i < members_.size(); ++i) {
    const std::shared_ptr<HostEngine> engine = members_[i].engine.lock();
    if (engine != nullptr) busy |= engine->engine().Step();
  }
  stepping_ = false;
  const int64_t now = now_ns();
  const int64_t next = std::min(network_.NextEventNs().value_or(now + kIdleNs), now + kIdleNs);
  clock_.AdvanceNs(busy ? kBusyNs : std::max(kBusyNs, next - now));
}

Result<std::shared_ptr<HostEngine>> HostSimulation::Find(size_t group) const {
  JF_RETURN_IF_ERROR(CheckThread());
  std::shared_ptr<HostEngine> engine = group < members_.size() ? members_[group].engine.lock() : nullptr;
  if (engine == nullptr) return MakeError(ErrorCode::kNotFound, "simulated fabric: group {} is gone", group);
  return engine;
}

Status HostSimulation::Kill(size_t group) {
  JF_ASSIGN_OR_RETURN(const std::shared_ptr<HostEngine> engine, Find(group));
  JF_RETURN_IF_ERROR(engine->Close(kCloseTimeoutUs));
  for (simulated::SimulatedDomain* nic : members_[group].nics) nic->Leave();
  return {};
}

Status HostSimulation::SetLink(size_t a, size_t b, bool works) {
  JF_ASSIGN_OR_RETURN(const std::shared_ptr<HostEngine> first, Find(a));
  JF_ASSIGN_OR_RETURN(const std::shared_ptr<HostEngine> second, Find(b));
  const size_t nics = std::min(members_[a].nics.size(), members_[b].nics.size());
  for (size_t i = 0; i < nics; ++i) {
    const simulated::SimulatedDomain& one = *members_[a].nics[i];
    const simulated::SimulatedDomain& other = *members_[b].nics[i];
    works ? network_.RestoreLink(one, other) : network_.CutLink(one, other);
  }
  return {};
}

Status HostSimulation::CheckThread() const {
  if (thread_ == std::this_thread::get_id()) return {};
  return MakeError(ErrorCode::kFailedPrecondition,
                   "a simulated fabric and its groups belong to the thread that made them");
}

}  // namespace jax_fabric::ffi_layer
