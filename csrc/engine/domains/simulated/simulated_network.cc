#include "csrc/engine/domains/simulated/simulated_network.h"

#include <algorithm>
#include <cstring>

#include "csrc/engine/domains/simulated/simulated_domain.h"

namespace jax_fabric::simulated {
namespace {

// Messages that wait for a receive buffer; more are sent again later, as a NIC without buffers has it.
constexpr size_t kMaxWaitingMessages = 1024;

using Lock = std::lock_guard<std::recursive_mutex>;

std::pair<uint32_t, uint32_t> Link(uint32_t a, uint32_t b) { return std::minmax(a, b); }

// How much of a flight travels at once.
uint64_t PieceBytes(const NicModel& nic, const Flight& flight) {
  const bool whole = nic.segment_bytes == 0 || flight.is_send;
  return whole ? std::max<uint64_t>(flight.request.length, 1) : nic.segment_bytes;
}

}  // namespace

uint32_t SimulatedNetwork::Join(SimulatedDomain* domain) {
  domains_.push_back(domain);
  return static_cast<uint32_t>(domains_.size() - 1);
}

void SimulatedNetwork::Leave(uint32_t index) {
  domains_[index] = nullptr;
  for (uint32_t place = 0; place < flights_.size(); ++place) {
    Flight& flight = flights_[place];
    if (flight.id == 0 || flight.source != index) continue;
    // What the dead NIC had sent already goes on; its memory is gone with it.
    if (flight.copy.empty() && flight.request.length > 0) Release(flight);
    flight.completed = true;
  }
  for (uint32_t other = 0; other < domains_.size(); ++other) {
    SimulatedDomain* domain = domains_[other];
    if (domain == nullptr || domain->faults().lease_ns == 0) continue;
    for (PeerId peer = 0; peer < domain->peers_.size(); ++peer) {
      if (domain->peers_[peer].domain != index) continue;
      Event event;
      event.at_ns = clock_.NowNs() + domain->faults().lease_ns;
      event.kind = Event::Kind::kLease;
      event.place = other;
      event.flight = peer;
      Schedule(event);
    }
  }
}

bool SimulatedNetwork::RunDue() {
  const Lock lock(mutex_);
  const int64_t now = clock_.NowNs();
  bool any = false;
  while (!events_.empty() && events_.top().at_ns <= now) {
    const Event event = events_.top();
    events_.pop();
    Run(event);
    any = true;
  }
  return any;
}

std::optional<int64_t> SimulatedNetwork::NextEventNs() const {
  const Lock lock(mutex_);
  if (events_.empty()) return std::nullopt;
  return std::max(events_.top().at_ns, clock_.NowNs());
}

void SimulatedNetwork::CutLink(const SimulatedDomain& a, const SimulatedDomain& b) {
  const Lock lock(mutex_);
  cut_links_.insert(Link(a.index_, b.index_));
}

void SimulatedNetwork::RestoreLink(const SimulatedDomain& a, const SimulatedDomain& b) {
  const Lock lock(mutex_);
  cut_links_.erase(Link(a.index_, b.index_));
}

void SimulatedNetwork::Hold() {
  const Lock lock(mutex_);
  holding_ = true;
}

void SimulatedNetwork::HoldBack(const Event& event) {
  const Flight& flight = flights_[event.place];
  held_.push_back(
      {event.kind == Event::Kind::kComplete, flight.source, flight.target, flight.id, flight.request.immediate});
  held_events_.push_back(event);
}

void SimulatedNetwork::ReleaseHeld(size_t index) {
  const Lock lock(mutex_);
  const Event event = held_events_[index];
  held_events_.erase(held_events_.begin() + static_cast<ptrdiff_t>(index));
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
  Run(event);
}

void SimulatedNetwork::Schedule(Event event) {
  if (holding_ && (event.kind == Event::Kind::kSegment || event.kind == Event::Kind::kComplete)) {
    return HoldBack(event);
  }
  event.order = random_();
  events_.push(event);
}

void SimulatedNetwork::Run(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kSegment:
      return OnSegment(event);
    case Event::Kind::kComplete: {
      Flight& flight = flights_[event.place];
      if (flight.id == event.flight) End(flight, ErrorCode::kOk, {});
      return;
    }
    case Event::Kind::kHandshake:
      return OnHandshake(event);
    case Event::Kind::kDatagram:
      return OnDatagram(event);
    case Event::Kind::kLease:
      return OnLease(event);
    case Event::Kind::kDeparture:
      return OnDeparture(event);
  }
}

// --- requests on their way

void SimulatedNetwork::Launch(Flight flight) {
  uint32_t place = static_cast<uint32_t>(flights_.size());
  if (free_places_.empty()) {
    flights_.emplace_back();
  } else {
    place = free_places_.back();
    free_places_.pop_back();
  }
  flight.id = next_flight_++;
  flights_[place] = std::move(flight);
  Flight& launched = flights_[place];
  if (launched.silent) return;
  const SimulatedFaults& faults = Find(launched.source)->faults();
  // Success is a promise: what will be refused is not reported early.
  const bool early = launched.failure == Flight::Failure::kNone && !launched.refused &&
                     Chance(faults.early_completion_probability) && WillBeTaken(launched);
  // A message is the NIC's own from the start; a write's source is read when it travels.
  if (early || launched.is_send) {
    const auto* data = static_cast<const std::byte*>(launched.request.source);
    launched.copy.assign(data, data + launched.request.length);
  }
  if (early && !Chance(faults.drop_completion_probability)) {
    Event event;
    event.at_ns = clock_.NowNs() + 1;
    event.kind = Event::Kind::kComplete;
    event.place = place;
    event.flight = launched.id;
    Schedule(event);
  }
  ScheduleSegments(place);
}

bool SimulatedNetwork::WillBeTaken(const Flight& flight) const {
  const SimulatedDomain* to = Find(flight.target);
  const WriteRequest& request = flight.request;
  return flight.is_send ||
         (to != nullptr && to->CheckTarget(request.remote_address, request.length, request.remote_key) == nullptr);
}

void SimulatedNetwork::ScheduleSegments(uint32_t place) {
  Flight& flight = flights_[place];
  SimulatedDomain& from = *Find(flight.source);
  const NicModel& nic = from.options_.nic;
  const uint64_t length = flight.request.length;
  const uint64_t piece = PieceBytes(nic, flight);
  flight.segments = std::max<uint64_t>(1, (length + piece - 1) / piece);
  // Posting and sending overlap: the port sends what was posted while the next request is.
  from.posting_free_ns_ = std::max(from.posting_free_ns_, clock_.NowNs()) + nic.post_ns;
  if (nic.interleaved && !holding_) {
    from.unposted_.push_back({place, flight.id, 0, from.posting_free_ns_});
    return ScheduleDeparture(from, clock_.NowNs());
  }
  from.sending_free_ns_ = std::max(from.sending_free_ns_, from.posting_free_ns_);
  for (uint64_t i = 0; i < flight.segments; ++i) ScheduleSegment(from, place, i * piece);
}

void SimulatedNetwork::ScheduleSegment(SimulatedDomain& from, uint32_t place, uint64_t offset) {
  const Flight& flight = flights_[place];
  const NicModel& nic = from.options_.nic;
  Event event;
  event.kind = Event::Kind::kSegment;
  event.place = place;
  event.flight = flight.id;
  event.offset = offset;
  event.length = std::min(PieceBytes(nic, flight), flight.request.length - offset);
  event.at_ns = DepartureNs(from, event.length) + nic.latency_ns + UpTo(nic.jitter_ns);
  Schedule(event);
}

void SimulatedNetwork::ScheduleDeparture(SimulatedDomain& from, int64_t not_before_ns) {
  if (from.departing_ || (from.outgoing_.empty() && from.unposted_.empty())) return;
  from.departing_ = true;
  Event event;
  event.kind = Event::Kind::kDeparture;
  event.place = from.index_;
  event.at_ns = std::max(not_before_ns, from.sending_free_ns_);
  if (from.outgoing_.empty()) event.at_ns = std::max(event.at_ns, from.unposted_.front().posted_ns);
  Schedule(event);
}

void SimulatedNetwork::OnDeparture(const Event& event) {
  SimulatedDomain* from = Find(event.place);
  if (from == nullptr) return;
  from->departing_ = false;
  while (!from->unposted_.empty() && from->unposted_.front().posted_ns <= event.at_ns) {
    from->outgoing_.push_back(from->unposted_.front());
    from->unposted_.pop_front();
  }
  while (!from->outgoing_.empty()) {
    SimulatedDomain::Outgoing next = from->outgoing_.front();
    from->outgoing_.pop_front();
    const Flight& flight = flights_[next.place];
    if (flight.id != next.flight) continue;  // it has failed
    from->sending_free_ns_ = std::max(from->sending_free_ns_, event.at_ns);
    ScheduleSegment(*from, next.place, next.offset);
    next.offset += PieceBytes(from->options_.nic, flight);
    if (next.offset < flight.request.length) from->outgoing_.push_back(next);
    break;
  }
  ScheduleDeparture(*from, event.at_ns);
}

int64_t SimulatedNetwork::DepartureNs(SimulatedDomain& from, uint64_t bytes) {
  const double rate = from.options_.nic.bytes_per_ns;
  if (rate > 0) from.sending_free_ns_ += static_cast<int64_t>(static_cast<double>(bytes) / rate);
  return from.sending_free_ns_;
}

int64_t SimulatedNetwork::ReceivedNs(SimulatedDomain& to, uint64_t bytes, int64_t at_ns) {
  const double rate = to.options_.nic.bytes_per_ns;
  if (rate <= 0) return at_ns;
  // The port takes one segment after the other, in the order in which they come, whoever sends them. The sender's own
  // time on the wire is in the departure, so that a free port adds nothing.
  const auto wire = static_cast<int64_t>(static_cast<double>(bytes) / rate);
  to.receiving_free_ns_ = std::max(to.receiving_free_ns_ + wire, at_ns);
  return to.receiving_free_ns_;
}

bool SimulatedNetwork::Lost(const Flight& flight) {
  if (Find(flight.target) == nullptr || cut_links_.contains(Link(flight.source, flight.target))) return true;
  const SimulatedDomain* from = Find(flight.source);
  return from != nullptr && Chance(from->options_.faults.loss_probability);
}

void SimulatedNetwork::SendAgain(const Event& event, Flight& flight) {
  SimulatedDomain* from = Find(flight.source);
  if (from == nullptr) return Release(flight);  // nobody left to do it
  const SimulatedDomain* to = Find(flight.target);
  const bool promised = flight.completed && !flight.landing_late && to != nullptr;
  if (event.attempts >= from->faults().retries && !promised) {
    const PeerId peer = flight.request.peer;
    if (flight.completed) Release(flight);
    return from->LosePeer(peer, ErrorCode::kUnavailable,
                          to == nullptr ? "its domain is gone: no answer after all retries"
                                        : "the link is down: no answer after all retries");
  }
  ++retransmissions_;
  Event again = event;
  ++again.attempts;
  again.received = false;
  again.at_ns = clock_.NowNs() + std::max<int64_t>(1, from->faults().retransmit_ns);
  Schedule(again);
}

void SimulatedNetwork::OnSegment(const Event& event) {
  Flight& flight = flights_[event.place];
  if (flight.id != event.flight) return;
  if (flight.refused) return Refuse(flight);
  // Between the port and the memory only the rank itself can be lost.
  if (event.received ? Find(flight.target) == nullptr : Lost(flight)) return SendAgain(event, flight);
  SimulatedDomain& to = *Find(flight.target);
  if (!event.received) {
    Event taken = event;
    taken.received = true;
    taken.at_ns = ReceivedNs(to, event.length, event.at_ns);
    if (taken.at_ns > clock_.NowNs()) return Schedule(taken);
  }
  if (flight.is_send && to.messages_.size() >= kMaxWaitingMessages) {
    Event again = event;
    again.at_ns = clock_.NowNs() + 1'000;
    return Schedule(again);
  }
  if (!flight.completed &&
      (flight.failure == Flight::Failure::kBefore ||
       (flight.failure == Flight::Failure::kMidway && Chance(1.0 / static_cast<double>(flight.segments))))) {
    KeepForLateLanding(flight);
    End(flight, flight.failure_code, "failed on request");
    if (!flight.landing_late) return;
    Event late = event;
    late.at_ns = clock_.NowNs() + UpTo(20 * Find(flight.source)->faults().retransmit_ns);
    return Schedule(late);
  }
  if (!Land(event, flight) || --flight.segments > 0) return;
  Arrive(flight);
}

void SimulatedNetwork::Refuse(Flight& flight) {
  // A success that was told too early: what lands later is no business of the sender's.
  if (flight.completed) return Release(flight);
  SimulatedDomain& from = *Find(flight.source);
  const PeerId peer = flight.request.peer;
  const std::string cause = "refused: the peer has removed this domain";
  End(flight, ErrorCode::kUnavailable, cause);
  // As where the other end of a connection is gone.
  from.LosePeer(peer, ErrorCode::kUnavailable, cause);
}

bool SimulatedNetwork::Land(const Event& event, Flight& flight) {
  if (flight.is_send) return true;
  SimulatedDomain& to = *Find(flight.target);
  const WriteRequest& request = flight.request;
  const uint64_t address = request.remote_address + event.offset;
  // The whole write is checked with every segment: memory may have been deregistered in between.
  if (const char* wrong = to.CheckTarget(request.remote_address, request.length, request.remote_key)) {
    SimulatedDomain* from = Find(flight.source);
    const bool breaks = from != nullptr && from->faults().bad_write_breaks_peer;
    const PeerId peer = request.peer;
    End(flight, ErrorCode::kPermissionDenied, wrong);
    if (breaks) from->LosePeer(peer, ErrorCode::kPermissionDenied, std::string("connection broken: ") + wrong);
    return false;
  }
  if (event.offset != flight.landed_bytes) ++reordered_segments_;
  flight.landed_bytes += event.length;
  if (event.length == 0) return true;
  if (observer_) observer_(address, address + event.length);
  if (to.options_.copy && event.offset < to.options_.copied_bytes) {
    const std::byte* data = flight.copy.empty() ? static_cast<const std::byte*>(request.source) : flight.copy.data();
    const uint64_t length = std::min(event.length, to.options_.copied_bytes - event.offset);
    std::memcpy(reinterpret_cast<void*>(address), data + event.offset, length);
  }
  return true;
}

void SimulatedNetwork::Arrive(Flight& flight) {
  SimulatedDomain& to = *Find(flight.target);
  // A late write's immediate is never seen: the contract allows none after the sender has heard of the failure.
  if (flight.is_send) {
    to.messages_.push_back({to.PeerOf(flight.source), flight.copy});
    to.DeliverMessages();
  } else if (flight.request.immediate.has_value() && !flight.landing_late) {
    Completion arrival;
    arrival.kind = CompletionKind::kImmediate;
    arrival.immediate = *flight.request.immediate;
    arrival.peer = to.PeerOf(flight.source);
    to.Report(arrival);
  }
  if (flight.completed) return Release(flight);
  if (flight.failure != Flight::Failure::kNone) return End(flight, flight.failure_code, "failed on request");
  const SimulatedDomain& from = *Find(flight.source);
  if (Chance(from.options_.faults.drop_completion_probability)) return;
  Event event;
  event.at_ns = clock_.NowNs() + UpTo(from.options_.nic.completion_ns);
  event.kind = Event::Kind::kComplete;
  event.place = static_cast<uint32_t>(&flight - flights_.data());
  event.flight = flight.id;
  if (from.options_.nic.completion_ns == 0 && !holding_) return End(flight, ErrorCode::kOk, {});
  Schedule(event);
}

void SimulatedNetwork::End(Flight& flight, ErrorCode code, const std::string& cause) {
  if (!flight.completed) {
    flight.completed = true;
    SimulatedDomain& from = *Find(flight.source);
    --from.outstanding_;
    Completion completion;
    completion.kind = flight.is_send ? CompletionKind::kSend : CompletionKind::kWrite;
    completion.code = code;
    completion.peer = flight.request.peer;
    completion.context = flight.request.context;
    from.Report(completion, cause);
    flight.landing_late = code != ErrorCode::kOk && !flight.is_send && !flight.copy.empty() &&
                          Chance(from.faults().late_landing_probability);
  }
  // A success may be known before the payload is there.
  if (flight.segments == 0 || (code != ErrorCode::kOk && !flight.landing_late)) Release(flight);
}

void SimulatedNetwork::Release(Flight& flight) {
  flight = Flight{};
  free_places_.push_back(static_cast<uint32_t>(&flight - flights_.data()));
}

void SimulatedNetwork::FailFlights(uint32_t domain, PeerId peer, ErrorCode code, const std::string& cause) {
  if (Find(domain)->outstanding_ == 0) return;
  for (Flight& flight : flights_) {
    if (flight.id == 0 || flight.source != domain || flight.request.peer != peer || flight.completed) continue;
    KeepForLateLanding(flight);
    End(flight, code, cause);
  }
}

void SimulatedNetwork::KeepForLateLanding(Flight& flight) {
  // What left the NIC before may still land; whoever gets the error must reckon with it.
  if (flight.silent || flight.is_send || !flight.copy.empty()) return;
  if (Find(flight.source)->faults().late_landing_probability == 0) return;
  const auto* data = static_cast<const std::byte*>(flight.request.source);
  flight.copy.assign(data, data + flight.request.length);
}

void SimulatedNetwork::Disconnect(uint32_t source, uint32_t target) {
  // Whole networks are closed when nothing is on its way: hundreds of ranks with as many peers each.
  const bool any = free_places_.size() < flights_.size();
  for (size_t i = 0; any && i < flights_.size(); ++i) {
    Flight& flight = flights_[i];
    if (flight.id != 0 && flight.source == source && flight.target == target) flight.refused = true;
  }
  SimulatedDomain* from = Find(source);
  if (from == nullptr) return;
  for (SimulatedDomain::Peer& peer : from->peers_) peer.refused |= peer.domain == target;
}

bool SimulatedNetwork::UsesKey(uint32_t domain, uint64_t local_key) const {
  return std::any_of(flights_.begin(), flights_.end(), [&](const Flight& flight) {
    return flight.id != 0 && flight.source == domain && !flight.completed && flight.request.length > 0 &&
           flight.request.local_key == local_key;
  });
}

// --- peers

void SimulatedNetwork::OnLease(const Event& event) {
  SimulatedDomain* domain = Find(event.place);
  if (domain != nullptr) {
    domain->LosePeer(static_cast<PeerId>(event.flight), ErrorCode::kUnavailable, "its domain is gone: lease ran out");
  }
}

}  // namespace jax_fabric::simulated
