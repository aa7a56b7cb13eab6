// SimulatedNetwork: what lies between simulated domains. Everything that happens is an event with a time on the
// network's clock; every choice comes from one seed, so the same program with the same seed runs the same way.
//
// Nothing moves by itself: a domain's Poll runs what is due. On a virtual clock a test moves time on, best to
// NextEventNs(). Everything is serialised by one mutex, so that a domain keeps the contract's rules about threads.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_NETWORK_H_
#define JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_NETWORK_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/engine/domains/simulated/flight.h"
#include "csrc/engine/domains/simulated/simulation_options.h"
#include "csrc/engine/handshake.h"

namespace jax_fabric::simulated {

class SimulatedDomain;

class SimulatedNetwork {
 public:
  // `clock` outlives the network, the network outlives its domains.
  SimulatedNetwork(uint64_t seed, const Clock& clock) : random_(seed), clock_(clock) {}
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

  // Runs everything that is due. Returns whether anything was.
  bool RunDue();
  // When something happens next, if anything will. Nothing that is due before now.
  std::optional<int64_t> NextEventNs() const;

  // What is between the two domains is lost until the link is restored, and sent again as long as retries last.
  void CutLink(const SimulatedDomain& a, const SimulatedDomain& b);
  void RestoreLink(const SimulatedDomain& a, const SimulatedDomain& b);

  // From now on nothing that is posted happens by itself: segments land and completions come when they are released,
  // one by one. For whoever wants to see every order.
  struct Held {
    bool completion = false;  // of the sender; else a segment
    uint32_t source = 0;      // domains, in the order in which they were made
    uint32_t target = 0;
    uint64_t write = 0;  // the same for a write's segments and its completion
    std::optional<uint32_t> immediate;
  };
  void Hold();
  const std::vector<Held>& held() const { return held_; }
  void ReleaseHeld(size_t index);

  // Called for every segment when it is written into memory: `end` is one past its last byte. For tests that watch
  // memory nobody may write to.
  using LandingObserver = std::function<void(uint64_t address, uint64_t end)>;
  void set_landing_observer(LandingObserver observer) { observer_ = std::move(observer); }

  // Segments that were sent again; writes whose payload landed in pieces out of order.
  uint64_t retransmissions() const { return retransmissions_; }
  uint64_t reordered_segments() const { return reordered_segments_; }

 private:
  friend class SimulatedDomain;

  struct Event {
    enum class Kind : uint8_t { kSegment, kComplete, kHandshake, kDatagram, kLease, kDeparture };
    int64_t at_ns = 0;
    uint64_t order = 0;  // of events at the same time: random, then as they came
    Kind kind = Kind::kSegment;
    uint32_t place = 0;   // of the flight; kHandshake, kLease, kDeparture: the domain
    uint64_t flight = 0;  // its id; kHandshake, kLease: the peer; kDatagram: its number
    uint64_t offset = 0;
    uint64_t length = 0;
    int attempts = 0;
    bool received = false;  // kSegment: the receiving port has taken it

    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };

  // --- of SimulatedDomain, under mutex_
  uint32_t Join(SimulatedDomain* domain);
  void Leave(uint32_t index);
  SimulatedDomain* Find(uint32_t index) const { return index < domains_.size() ? domains_[index] : nullptr; }
  void Launch(Flight flight);
  bool WillBeTaken(const Flight& flight) const;
  // simulated_handshake.cc
  void StartHandshake(uint32_t domain, PeerId peer);
  void SendDatagram(uint32_t source, uint32_t target, const HandshakeDatagram& datagram);
  void OnHandshake(const Event& event);
  void OnDatagram(const Event& event);
  void OnAnswer(SimulatedDomain& caller, const HandshakeDatagram& datagram);

  // Ends all flights of the domain to the peer with an error.
  void FailFlights(uint32_t domain, PeerId peer, ErrorCode code, const std::string& cause);
  // What the source has sent or sends over the connection to the target does not arrive any more.
  void Disconnect(uint32_t source, uint32_t target);
  bool UsesKey(uint32_t domain, uint64_t local_key) const;
  bool Chance(double probability) { return probability > 0 && std::bernoulli_distribution(probability)(random_); }
  int64_t UpTo(int64_t most) { return most <= 0 ? 0 : std::uniform_int_distribution<int64_t>(0, most)(random_); }

  void Schedule(Event event);
  void HoldBack(const Event& event);
  void Run(const Event& event);
  void OnSegment(const Event& event);
  void OnLease(const Event& event);
  bool Lost(const Flight& flight);
  void SendAgain(const Event& event, Flight& flight);
  // False: the flight has failed.
  bool Land(const Event& event, Flight& flight);
  void Refuse(Flight& flight);
  // Before it ends with an error.
  void KeepForLateLanding(Flight& flight);
  void Arrive(Flight& flight);
  void End(Flight& flight, ErrorCode code, const std::string& cause);
  void Release(Flight& flight);
  int64_t DepartureNs(SimulatedDomain& from, uint64_t bytes);
  // When the receiving port has taken a segment that came at `at_ns`.
  int64_t ReceivedNs(SimulatedDomain& to, uint64_t bytes, int64_t at_ns);
  void ScheduleSegments(uint32_t place);
  void ScheduleSegment(SimulatedDomain& from, uint32_t place, uint64_t offset);
  // Of an interleaved NIC.
  void ScheduleDeparture(SimulatedDomain& from, int64_t not_before_ns);
  void OnDeparture(const Event& event);

  mutable std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  const Clock& clock_;
  std::vector<SimulatedDomain*> domains_;  // null: gone
  std::vector<Flight> flights_;
  std::vector<uint32_t> free_places_;
  struct Datagram {
    uint32_t source = 0;
    uint32_t target = 0;
    Bytes bytes;
  };
  std::unordered_map<uint64_t, Datagram> datagrams_;  // on their way, by number
  uint64_t next_datagram_ = 1;
  uint64_t next_flight_ = 1;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::set<std::pair<uint32_t, uint32_t>> cut_links_;
  LandingObserver observer_;
  bool holding_ = false;
  std::vector<Held> held_;
  std::vector<Event> held_events_;
  uint64_t retransmissions_ = 0;
  uint64_t reordered_segments_ = 0;
};

}  // namespace jax_fabric::simulated

#endif  // JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATED_NETWORK_H_
