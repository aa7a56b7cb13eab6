#include "csrc/moe/testing/exploration.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace jax_fabric::moe::testing {
namespace {

// Steps after an event until the engines have done all that follows from it.
constexpr int kSettle = 4;

struct Event {
  enum class Kind : uint8_t { kStart, kArrival, kCompletion };
  Kind kind = Kind::kStart;
  uint32_t rank = 0;      // that starts, or that the write comes from
  uint32_t target = 0;    // of the write
  uint64_t number = 0;    // of the call, or of the write among those of this pair of ranks
  size_t held_index = 0;  // changes as others are released
  uint64_t ranks = 0;     // that it touches, as bits

  auto Key() const { return std::tuple(ranks, kind, rank, target, number); }
  bool operator==(const Event& other) const { return Key() == other.Key(); }
};

std::string Describe(const Event& event) {
  constexpr const char* kNames[] = {"start", "arrival", "completion"};
  return fmt::format("{} {}>{} #{}; ", kNames[static_cast<int>(event.kind)], event.rank, event.target, event.number);
}

class ExploredRun {
 public:
  explicit ExploredRun(const Scope& scope)
      : scope_(scope),
        fabric_({.ranks = scope.ranks, .mapping = scope.mapping, .segment_bytes = 0},
                SmallConfig(scope.ranks, scope.channels)) {
    for (int32_t rank = 0; rank < scope.ranks; ++rank) operations_.emplace_back(scope.program.size());
    fabric_.Connect();
    fabric_.network().Hold();
  }
  ~ExploredRun() {
    // A completion that never comes would keep the engines from closing.
    while (!fabric_.network().held().empty()) fabric_.network().ReleaseHeld(0);
    fabric_.Close();
  }

  std::vector<Event> Events() {
    std::vector<Event> events;
    for (int32_t rank = 0; rank < scope_.ranks; ++rank) {
      for (size_t call = 0; call < scope_.program.size(); ++call) {
        if (!Ready(rank, call)) continue;
        Event event;
        event.rank = event.target = rank;
        event.number = call;
        event.ranks = Touched(rank, rank);
        events.push_back(event);
      }
    }
    const auto& held = fabric_.network().held();
    for (size_t i = 0; i < held.size(); ++i) events.push_back(EventOf(held[i], i));
    return events;
  }

  void Do(const Event& event) {
    history_ += Describe(event);
    ++length_;
    if (event.kind == Event::Kind::kStart) {
      const ExploredCall& call = scope_.program[event.number];
      auto& operation = operations_[event.rank][event.number];
      operation = std::make_unique<PatternExchange>(fabric_.context(event.rank).config().layout, call.pattern);
      fabric_.channel(event.rank, call.channel).Submit(operation.get());
    } else {
      const uint64_t write = fabric_.network().held()[event.held_index].write;
      fabric_.network().ReleaseHeld(event.held_index);
      if (!scope_.late_completions) ReleaseCompletion(write);
    }
    fabric_.StepAll(kSettle);
  }

  // What has gone wrong so far.
  std::string Failure() const {
    for (int32_t rank = 0; rank < scope_.ranks; ++rank) {
      for (size_t call = 0; call < scope_.program.size(); ++call) {
        const auto& operation = operations_[rank][call];
        if (!operation) continue;
        if (!operation->damage().empty()) return Because(operation->damage());
        if (operation->finished() && !operation->ok()) return Because(operation->error().message);
      }
    }
    return {};
  }
  // What is wrong when nothing can happen any more.
  std::string FailureAtTheEnd() const {
    if (std::string failure = Failure(); !failure.empty()) return failure;
    for (size_t call = 0; call < scope_.program.size(); ++call) {
      for (int32_t rank = 0; rank < scope_.ranks; ++rank) {
        const auto& operation = operations_[rank][call];
        if (!operation || !operation->finished()) return Because(fmt::format("call {} never ends", call));
        if (operation->sequence() != operations_[0][call]->sequence()) return Because("numbers differ");
      }
    }
    return {};
  }
  uint64_t length() const { return length_; }

  // Equal for equal states. What a rank will do is decided by its channels, its calls, its memory and the writes that
  // it has posted; time does not count, since no deadline comes near.
  uint64_t StateHash() {
    std::string state;
    for (int32_t rank = 0; rank < scope_.ranks; ++rank) {
      for (int32_t channel = 0; channel < scope_.channels; ++channel) {
        state += fabric_.channel(rank, channel).DescribeState();
      }
      for (const auto& operation : operations_[rank]) {
        state += operation ? fmt::format("{} {} {} {}, ", operation->sequence(), operation->packs(),
                                         operation->unpacks(), operation->finishes())
                           : "not started, ";
      }
      state += fmt::format("memory {:x}\n", MemoryHash(rank));
    }
    // What each rank has posted to each, in this order, and what of it is still to come.
    const auto& held = fabric_.network().held();
    std::set<std::pair<uint64_t, bool>> waiting;
    for (size_t i = 0; i < held.size(); ++i) {
      EventOf(held[i], i);
      waiting.emplace(held[i].write, held[i].completion);
    }
    std::map<std::tuple<uint32_t, uint32_t, uint64_t>, std::string> writes;
    for (const auto& [write, number] : numbers_) {
      const auto [source, target] = pairs_[write];
      writes[{source, target, number}] = fmt::format("{}>{} {} {}{}, ", source, target, immediates_[write],
                                                     waiting.contains({write, false}), waiting.contains({write, true}));
    }
    for (const auto& [key, write] : writes) state += write;
    return XXH3_64bits(state.data(), state.size());
  }

 private:
  // Of the slots and the announcements, without the incarnations, which are random.
  uint64_t MemoryHash(int32_t rank) {
    const std::span<const std::byte> slots = fabric_.context(rank).slots();
    std::vector<std::byte> copy(slots.begin(), slots.end());
    const MoeConfig& config = fabric_.context(rank).config();
    for (int32_t channel = 0; channel < config.channels; ++channel) {
      for (int32_t source = 0; source < scope_.ranks; ++source) {
        for (const int64_t parity : {0, 1}) {
          const int64_t offset = config.ChannelOffset(channel) + config.layout.SlotOffset(source, parity);
          std::memset(copy.data() + offset + offsetof(kernels::MessageHeader, incarnation), 0,
                      sizeof(kernels::MessageHeader::incarnation));
        }
      }
    }
    return XXH3_64bits(copy.data(), copy.size());
  }

  bool Ready(int32_t rank, size_t call) const {
    if (operations_[rank][call]) return false;
    const int32_t after = scope_.program[call].after;
    return after < 0 || (operations_[rank][after] && operations_[rank][after]->finished());
  }

  Event EventOf(const simulated::SimulatedNetwork::Held& held, size_t index) {
    // Writes of a pair are posted in one order whatever happens elsewhere, so they can be counted.
    auto [known, is_new] = numbers_.try_emplace(held.write, 0);
    if (is_new) known->second = counts_[{held.source, held.target}]++;
    pairs_[held.write] = {held.source, held.target};
    if (!held.completion) immediates_[held.write] = held.immediate.value_or(~0u);
    Event event;
    event.kind = held.completion ? Event::Kind::kCompletion : Event::Kind::kArrival;
    event.rank = held.source;
    event.target = held.target;
    event.number = known->second;
    event.held_index = index;
    const uint32_t rank = held.completion ? held.source : held.target;
    event.ranks = Touched(rank, scope_.late_completions ? rank : held.source);
    return event;
  }

  // What happens at these ranks changes nothing at others, unless they store into the others' memory.
  uint64_t Touched(uint32_t rank, uint32_t other) const {
    return scope_.mapping == Mapping::kNone ? uint64_t{1} << rank | uint64_t{1} << other : ~uint64_t{0};
  }

  void ReleaseCompletion(uint64_t write) {
    const auto& held = fabric_.network().held();
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i].write == write) return fabric_.network().ReleaseHeld(i);
    }
  }

  std::string Because(const std::string& what) const { return what + "\nafter: " + history_; }

  const Scope& scope_;
  std::vector<std::vector<std::unique_ptr<PatternExchange>>> operations_;  // [rank][call]; outlive the fabric
  MoeFabric fabric_;
  std::map<uint64_t, uint64_t> numbers_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> counts_;
  // By write.
  std::map<uint64_t, std::pair<uint32_t, uint32_t>> pairs_;
  std::map<uint64_t, uint32_t> immediates_;
  std::string history_;
  uint64_t length_ = 0;
};

// One decision on the way. Sleep sets (Godefroid 1996): what was tried here before need not be tried again after an
// event that has nothing to do with it.
struct Choice {
  std::vector<Event> events;  // to be tried
  std::vector<Event> asleep;
  int deviations_left = 0;  // before it; below 0: as many as one likes
  size_t next = 0;

  int DeviationsLeftAfterNext() const { return next == 0 ? deviations_left : deviations_left - 1; }
  // Nothing where orders are bounded: the order that stands for an equal one may be beyond the bound.
  std::vector<Event> AsleepAfterNext() const {
    if (deviations_left >= 0) return {};
    std::vector<Event> result = asleep;
    result.insert(result.end(), events.begin(), events.begin() + static_cast<ptrdiff_t>(next));
    std::erase_if(result, [&](const Event& event) { return (event.ranks & events[next].ranks) != 0; });
    return result;
  }
};

Choice MakeChoice(std::vector<Event> events, const Choice* before, const Scope& scope) {
  Choice choice;
  choice.deviations_left = before == nullptr ? scope.max_deviations : before->DeviationsLeftAfterNext();
  if (choice.deviations_left == 0) events.resize(1);
  // Where states are merged, an order that is left out here may be the only one that leads somewhere else later.
  if (before != nullptr && !scope.merge_states) choice.asleep = before->AsleepAfterNext();
  std::erase_if(events, [&choice](const Event& event) {
    return std::find(choice.asleep.begin(), choice.asleep.end(), event) != choice.asleep.end();
  });
  choice.events = std::move(events);
  return choice;
}

}  // namespace

Exploration Explore(const Scope& scope, uint64_t max_runs) {
  Exploration exploration;
  std::vector<Choice> path;
  std::unordered_set<uint64_t> states;
  for (; exploration.runs < max_runs; ++exploration.runs) {
    ExploredRun run(scope);
    for (size_t depth = 0;; ++depth) {
      std::vector<Event> events = run.Events();
      if (events.empty()) {
        exploration.failure = run.FailureAtTheEnd();
        break;
      }
      if (depth == path.size()) {
        const bool known = !states.insert(run.StateHash()).second;
        exploration.states = states.size();
        if (known && scope.merge_states) {
          ++exploration.redundant;
          break;
        }
        path.push_back(MakeChoice(events, depth == 0 ? nullptr : &path[depth - 1], scope));
      }
      const Choice& choice = path[depth];
      if (choice.events.empty()) {
        ++exploration.redundant;
        break;
      }
      // The same event as when the choice was listed; only its place among those held may be another.
      const auto now = std::find(events.begin(), events.end(), choice.events[choice.next]);
      if (now == events.end()) {
        exploration.failure = "a run cannot be repeated";
        break;
      }
      run.Do(*now);
      exploration.failure = run.Failure();
      if (!exploration.failure.empty()) break;
    }
    exploration.longest = std::max(exploration.longest, run.length());
    if (!exploration.failure.empty()) return exploration;
    while (!path.empty() && (path.back().events.empty() || ++path.back().next == path.back().events.size())) {
      path.pop_back();
    }
    if (path.empty()) {
      ++exploration.runs;
      exploration.complete = true;
      return exploration;
    }
  }
  return exploration;
}

std::string RunAnyOrder(const Scope& scope, uint64_t seed) {
  ExploredRun run(scope);
  std::mt19937_64 random(seed);
  // In half of the runs one rank starts its calls as late as it can.
  const int32_t late = random() % 2 == 0 ? static_cast<int32_t>(random() % scope.ranks) : -1;
  for (std::vector<Event> events = run.Events(); !events.empty(); events = run.Events()) {
    std::vector<Event> now = events;
    std::erase_if(now, [&](const Event& event) {
      return event.kind == Event::Kind::kStart && static_cast<int32_t>(event.rank) == late;
    });
    if (now.empty()) now = events;
    run.Do(now[random() % now.size()]);
    if (std::string failure = run.Failure(); !failure.empty()) return failure;
  }
  return run.FailureAtTheEnd();
}

}  // namespace jax_fabric::moe::testing
