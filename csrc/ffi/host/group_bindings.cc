// DomainGroup and PreparedScatter.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "csrc/engine/peer_address.h"
#include "csrc/ffi/host/bindings.h"
#include "csrc/ffi/host/host_engine.h"
#include "csrc/ffi/host/host_region.h"
#include "csrc/ffi/host/host_scatter.h"
#include "csrc/ffi/host/pending.h"
#include "csrc/ffi/python_errors.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

using PendingPointer = std::shared_ptr<Pending>;
using PageIndices = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Indices (int64 or uint64), stride, offset.
using PageArguments = std::tuple<PageIndices, uint64_t, uint64_t>;
// Peer, source or None, source offset, target, target offset, length, immediate, max length.
using EntryArguments = std::tuple<PeerHandle, HostRegionHandle*, uint64_t, std::shared_ptr<RemoteMemory>, uint64_t,
                                  uint64_t, uint32_t, uint64_t>;
using BarrierArguments = std::tuple<PeerHandle, std::shared_ptr<RemoteMemory>, uint32_t>;

ByteView View(const nb::bytes& bytes) { return {static_cast<const std::byte*>(bytes.data()), bytes.size()}; }

DomainGroup& Usable(const HostGroup& self) {
  RaiseIfError(self.engine->CheckProcess());
  return *self.group;
}

// What takes longer than this many copied indices would, gives up the GIL.
constexpr size_t kManyPages = 4096;

// submit(RequestOptions) -> Result<Transfer>. Keeps the GIL where that takes a microsecond: getting it back from
// another thread that computes takes milliseconds.
template <typename Submit>
PendingPointer Run(const HostGroup& self, std::vector<std::shared_ptr<HostRegion>> sources, int64_t timeout_us,
                   const std::optional<WriteGrant>& grant, Submit submit, bool is_long = false) {
  Usable(self);
  auto pending = std::make_shared<Pending>(self.engine);
  RequestOptions options;
  options.deadline = AfterTimeout(timeout_us, self.engine->clock());
  options.on_worker = pending->MakeCallback();
  options.keep_alive = pending->MakeKeepAlive(std::move(sources));
  const WorkerCallback callback = options.on_worker;
  options.wait_for_room = false;
  options.grant = grant;
  Result<Transfer> transfer;
  if (!is_long) transfer = submit(options);
  if (is_long || (!transfer.has_value() && transfer.error().code == ErrorCode::kResourceExhausted)) {
    const nb::gil_scoped_release released;
    options.wait_for_room = true;
    transfer = submit(std::move(options));
  }
  if (!transfer.has_value()) {
    Pending::Forget(callback);
    Raise(transfer.error());
  }
  pending->SetTransfer(*std::move(transfer));
  return pending;
}

std::vector<std::shared_ptr<HostRegion>> Sources(const HostGroup& self, const HostRegionHandle* source) {
  if (source == nullptr) return {};
  if (source->region()->group().group != self.group) {
    Raise(Error{ErrorCode::kInvalidArgument,
                fmt::format("group '{}': the source region is registered with group '{}': register it with the group "
                            "that sends it",
                            self.group->name(), source->region()->group().group->name())});
  }
  return {source->region()};
}

std::pair<PeerHandle, std::string> AddPeer(const HostGroup& self, const nb::bytes& address) {
  const PeerHandle handle = ValueOrRaise(Usable(self).AddPeer(View(address)));
  return {handle, ValueOrRaise(PeerAddress::Parse(View(address))).name};
}

void WaitPeers(const HostGroup& self, const std::vector<PeerHandle>& peers, int64_t timeout_us) {
  DomainGroup& group = Usable(self);
  Status status;
  WaitInterruptibly(timeout_us, self.engine->clock(), [&](Deadline slice) {
    status = group.WaitPeers(peers, slice);
    return status.has_value() || status.error().code != ErrorCode::kDeadlineExceeded;
  });
  RaiseIfError(status);
}

std::unique_ptr<HostRegionHandle> RegisterMemory(const HostGroup& self, const nb::object& owner, uint64_t address,
                                                 uint64_t nbytes, bool remote_write) {
  const Access access = remote_write ? Access::kRemoteWrite : Access::kLocalOnly;
  return std::make_unique<HostRegionHandle>(ValueOrRaise(HostRegion::Register(self, owner, address, nbytes, access)));
}

PendingPointer Expect(const HostGroup& self, uint32_t immediate, uint32_t count, int64_t timeout_us) {
  DomainGroup& group = Usable(self);
  auto pending = std::make_shared<Pending>(self.engine);
  const WorkerCallback callback = pending->MakeCallback();
  if (const Status status =
          group.ExpectImmediate(immediate, count, AfterTimeout(timeout_us, self.engine->clock()), callback);
      !status.has_value()) {
    Pending::Forget(callback);
    Raise(status.error());
  }
  return pending;
}

PendingPointer Write(const HostGroup& self, PeerHandle peer, const HostRegionHandle* source, uint64_t source_offset,
                     const RemoteMemory& target, uint64_t target_offset, uint64_t nbytes, uint64_t max_nbytes,
                     std::optional<uint32_t> immediate, int64_t timeout_us, const std::optional<WriteGrant>& grant) {
  SingleWrite write;
  write.peer = peer;
  if (source != nullptr) write.source = source->region()->memory();
  write.source_offset = source_offset;
  write.target = &target;
  write.target_offset = target_offset;
  write.length = nbytes;
  write.max_length = max_nbytes;
  write.immediate = immediate;
  return Run(self, Sources(self, source), timeout_us, grant,
             [&](RequestOptions options) { return self.group->Write(write, std::move(options)); });
}

PageSet ToPageSet(const char* name, const PageArguments& arguments) {
  const auto& [indices, stride, offset] = arguments;
  const std::span pages(static_cast<const uint64_t*>(indices.data()), indices.size());
  if (indices.dtype() == nb::dtype<int64_t>()) {
    const auto below_zero = std::ranges::find_if(pages, [](uint64_t page) { return static_cast<int64_t>(page) < 0; });
    if (below_zero != pages.end()) {
      Raise(Error{ErrorCode::kInvalidArgument,
                  fmt::format("{}: index {} is below 0", name, static_cast<int64_t>(*below_zero))});
    }
  }
  return {pages, stride, offset};
}

PendingPointer WritePages(const HostGroup& self, PeerHandle peer, uint64_t page_nbytes, const HostRegionHandle& source,
                          const PageArguments& source_pages, const RemoteMemory& target,
                          const PageArguments& target_pages, std::optional<uint32_t> immediate, int64_t timeout_us,
                          const std::optional<WriteGrant>& grant) {
  PagedWrites write;
  write.peer = peer;
  write.page_length = page_nbytes;
  write.source = source.region()->memory();
  write.source_pages = ToPageSet("source_pages", source_pages);
  write.target = &target;
  write.target_pages = ToPageSet("target_pages", target_pages);
  write.immediate = immediate;
  return Run(
      self, Sources(self, &source), timeout_us, grant,
      [&](RequestOptions options) { return self.group->WritePages(write, std::move(options)); },
      write.source_pages.indices.size() + write.target_pages.indices.size() > kManyPages);
}

HostScatterEntries ToEntries(const HostGroup& self, const std::vector<EntryArguments>& arguments) {
  HostScatterEntries result;
  for (const auto& [peer, source, source_offset, target, target_offset, nbytes, immediate, max_nbytes] : arguments) {
    ScatterEntry entry;
    entry.peer = peer;
    if (source != nullptr) {
      for (auto& region : Sources(self, source)) result.sources.push_back(std::move(region));
      entry.source_memory = source->region()->memory();
      entry.source = static_cast<const std::byte*>(entry.source_memory.address) + source_offset;
    }
    entry.target = target.get();
    result.targets.push_back(target);
    entry.target_offset = target_offset;
    entry.length = nbytes;
    entry.immediate = immediate;
    entry.max_length = max_nbytes;
    result.entries.push_back(entry);
  }
  return result;
}

PendingPointer Scatter(const HostGroup& self, const std::vector<EntryArguments>& arguments, int64_t timeout_us,
                       const std::optional<WriteGrant>& grant) {
  HostScatterEntries scatter = ToEntries(self, arguments);
  return Run(self, std::move(scatter.sources), timeout_us, grant,
             [&](RequestOptions options) { return self.group->Scatter(scatter.entries, std::move(options)); });
}

std::shared_ptr<HostScatter> PrepareScatter(const HostGroup& self, const std::vector<EntryArguments>& arguments) {
  DomainGroup& group = Usable(self);
  auto scatter = std::make_shared<HostScatter>();
  scatter->group = self;
  scatter->entries = ToEntries(self, arguments);
  scatter->scatter = ValueOrRaise(group.PrepareScatter(scatter->entries.entries));
  return scatter;
}

void SetScatterLength(HostScatter& self, size_t entry, uint64_t nbytes) {
  if (!self.scatter->idle()) {
    Raise(Error{ErrorCode::kFailedPrecondition,
                fmt::format("group '{}': scatter: a post is under way, or in flight after its deadline: wait for it "
                            "before set_nbytes",
                            self.group.group->name())});
  }
  self.scatter->SetLength(entry, nbytes);
}

PendingPointer PostScatter(const std::shared_ptr<HostScatter>& self, int64_t timeout_us,
                           const std::optional<WriteGrant>& grant) {
  Usable(self->group);
  auto pending = std::make_shared<Pending>(self->group.engine);
  pending->Keep(self);
  const WorkerCallback callback = pending->MakeCallback();
  const Deadline deadline = AfterTimeout(timeout_us, self->group.engine->clock());
  if (const Status status = self->scatter->Post(deadline, callback, grant); !status.has_value()) {
    Pending::Forget(callback);
    Raise(status.error());
  }
  return pending;
}

PendingPointer Barrier(const HostGroup& self, const std::vector<BarrierArguments>& arguments, int64_t timeout_us) {
  std::vector<BarrierTarget> targets;
  for (const auto& [peer, target, immediate] : arguments) targets.push_back({peer, target.get(), immediate});
  return Run(self, {}, timeout_us, {},
             [&](RequestOptions options) { return self.group->Barrier(targets, std::move(options)); });
}

PendingPointer Send(const HostGroup& self, PeerHandle peer, const nb::bytes& message, int64_t timeout_us) {
  return Run(self, {}, timeout_us, {}, [&, view = View(message)](RequestOptions options) {
    return self.group->Send(peer, view, std::move(options));
  });
}

PendingPointer RevokeGrant(const HostGroup& self, const WriteGrant& grant, int64_t timeout_us) {
  DomainGroup& group = Usable(self);
  auto pending = std::make_shared<Pending>(self.engine);
  const WorkerCallback callback = pending->MakeCallback();
  const Deadline deadline = AfterTimeout(timeout_us, self.engine->clock());
  if (const Status status = group.RevokeGrant(grant, deadline, callback); !status.has_value()) {
    Pending::Forget(callback);
    Raise(status.error());
  }
  return pending;
}

void ReceiveMessages(const HostGroup& self, const nb::object& function, uint32_t buffers, uint64_t max_nbytes) {
  DomainGroup& group = Usable(self);
  auto callback = std::make_shared<PythonCallback>(function);
  self.engine->ClearAtClose(callback);
  ReceiveOptions options;
  options.buffers = buffers;
  options.max_bytes = max_nbytes;
  options.on_message = [callback](PeerHandle peer, ByteView message) {
    (*callback)([&] {
      const nb::bytes bytes(reinterpret_cast<const char*>(message.data()), message.size());
      return PyTuple_Pack(2, nb::int_(peer).ptr(), bytes.ptr());
    });
  };
  RaiseIfError(group.ReceiveMessages(std::move(options)));
}

}  // namespace

void RegisterGroupBindings(nb::module_& m) {
  nb::class_<HostScatter>(m, "PreparedScatter")
      .def("set_nbytes", &SetScatterLength, nb::arg("entry"), nb::arg("nbytes"))
      .def("post", &PostScatter, nb::arg("timeout_us"), nb::arg("grant").none());

  nb::class_<HostGroup>(m, "DomainGroup")
      .def_prop_ro("nic_count", [](const HostGroup& self) { return Usable(self).nic_count(); })
      .def("address",
           [](const HostGroup& self) {
             const Bytes bytes = Usable(self).Address();
             return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           })
      .def("add_peer", &AddPeer, nb::arg("address"))
      .def("wait_peers", &WaitPeers, nb::arg("peers"), nb::arg("timeout_us"))
      .def(
          "remove_peer", [](const HostGroup& self, PeerHandle peer) { Usable(self).RemovePeer(peer); }, nb::arg("peer"))
      .def(
          "peer_path", [](const HostGroup& self, PeerHandle peer) { return ValueOrRaise(Usable(self).PeerPath(peer)); },
          nb::arg("peer"))
      .def("register", &RegisterMemory, nb::arg("owner"), nb::arg("address"), nb::arg("nbytes"),
           nb::arg("remote_write"))
      .def(
          "allocate_immediates",
          [](const HostGroup& self, uint32_t count) { return ValueOrRaise(Usable(self).AllocateImmediates(count)); },
          nb::arg("count"))
      .def(
          "release_immediates",
          [](const HostGroup& self, uint32_t first, uint32_t count) {
            RaiseIfError(Usable(self).ReleaseImmediates(first, count));
          },
          nb::arg("first"), nb::arg("count"))
      .def("expect", &Expect, nb::arg("immediate"), nb::arg("count"), nb::arg("timeout_us"))
      .def(
          "cancel_expectation",
          [](const HostGroup& self, uint32_t immediate) { Usable(self).CancelExpectation(immediate); },
          nb::arg("immediate"))
      .def_prop_ro("stray_immediates", [](const HostGroup& self) { return Usable(self).stray_immediates(); })
      .def(
          "write_immediates",
          [](const HostGroup& self, PeerHandle peer, uint64_t max_nbytes) {
            return ValueOrRaise(Usable(self).WriteImmediates(peer, max_nbytes));
          },
          nb::arg("peer"), nb::arg("max_nbytes"))
      .def(
          "scatter_immediates",
          [](const HostGroup& self, PeerHandle peer, uint64_t max_nbytes) {
            return ValueOrRaise(Usable(self).ScatterImmediates(peer, max_nbytes));
          },
          nb::arg("peer"), nb::arg("max_nbytes"))
      .def(
          "open_grant",
          [](const HostGroup& self, PeerHandle writer, uint32_t immediate) {
            return ValueOrRaise(Usable(self).OpenGrant(writer, immediate));
          },
          nb::arg("writer"), nb::arg("immediate"))
      .def(
          "close_grant",
          [](const HostGroup& self, const WriteGrant& grant) { RaiseIfError(Usable(self).CloseGrant(grant)); },
          nb::arg("grant"))
      .def("revoke_grant", &RevokeGrant, nb::arg("grant"), nb::arg("timeout_us"))
      .def(
          "give_up_grant",
          [](const HostGroup& self, PeerHandle owner, const WriteGrant& grant) {
            RaiseIfError(Usable(self).GiveUpGrant(owner, grant));
          },
          nb::arg("owner"), nb::arg("grant"))
      .def("write", &Write, nb::arg("peer"), nb::arg("source").none(), nb::arg("source_offset"), nb::arg("target"),
           nb::arg("target_offset"), nb::arg("nbytes"), nb::arg("max_nbytes"), nb::arg("immediate").none(),
           nb::arg("timeout_us"), nb::arg("grant").none())
      .def("write_pages", &WritePages, nb::arg("peer"), nb::arg("page_nbytes"), nb::arg("source"),
           nb::arg("source_pages"), nb::arg("target"), nb::arg("target_pages"), nb::arg("immediate").none(),
           nb::arg("timeout_us"), nb::arg("grant").none())
      .def("scatter", &Scatter, nb::arg("entries"), nb::arg("timeout_us"), nb::arg("grant").none())
      .def("prepare_scatter", &PrepareScatter, nb::arg("entries"))
      .def("barrier", &Barrier, nb::arg("targets"), nb::arg("timeout_us"))
      .def("send", &Send, nb::arg("peer"), nb::arg("message"), nb::arg("timeout_us"))
      .def("receive_messages", &ReceiveMessages, nb::arg("callback"), nb::arg("buffers"), nb::arg("max_nbytes"))
      .def_prop_ro("forged_messages", [](const HostGroup& self) { return Usable(self).forged_messages(); })
      .def_prop_ro("replayed_messages", [](const HostGroup& self) { return Usable(self).replayed_messages(); });
}

}  // namespace jax_fabric::ffi_layer
