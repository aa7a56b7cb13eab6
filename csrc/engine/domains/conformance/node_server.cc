#include "csrc/engine/domains/conformance/node_server.h"

#include <poll.h>
#include <sched.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/engine/domains/conformance/direct_node.h"
#include "csrc/engine/domains/conformance/node_protocol.h"

namespace jax_fabric::conformance {
namespace {

Parcel Answer(const PostOutcome& outcome) {
  Parcel answer;
  answer.Put(outcome.posted).Put(outcome.last).PutText(outcome.error);
  return answer;
}

// Each case evaluates its arguments one by one: the order of evaluation inside a call is not defined.
Parcel Execute(Node& node, std::vector<Completion>& inbox, Command command, Parcel& in) {
  Parcel out;
  switch (command) {
    case Command::kAddress:
      out.PutAll(std::span<const std::byte>(node.Address()));
      break;
    case Command::kLimits:
      out.Put(node.Limits());
      break;
    case Command::kAddPeer:
      out.PutResult(node.AddPeer(in.GetAll<std::byte>()));
      break;
    case Command::kState:
      out.Put(node.State(in.Get<PeerId>()));
      break;
    case Command::kRemovePeer:
      node.RemovePeer(in.Get<PeerId>());
      break;
    case Command::kLastError:
      out.PutText(node.LastError());
      break;
    case Command::kAllocate:
      out.PutResult(node.Allocate(in.Get<uint64_t>()));
      break;
    case Command::kRegister: {
      const auto address = in.Get<uint64_t>();
      const auto length = in.Get<uint64_t>();
      out.PutResult(node.Register(address, length, in.Get<Access>()));
      break;
    }
    case Command::kDeregister:
      out.PutResult(node.Deregister(in.Get<MemoryRegion>()));
      break;
    case Command::kPostWrites:
      return Answer(node.PostWrites(in.GetAll<WriteRequest>()));
    case Command::kPostSends:
      return Answer(node.PostSends(in.GetAll<SendRequest>()));
    case Command::kPostReceives:
      return Answer(node.PostReceives(in.GetAll<ReceiveRequest>()));
    case Command::kPoll:
      out.PutAll(std::span<const Completion>(std::exchange(inbox, {})));
      break;
    case Command::kFill:
    case Command::kFillByte:
    case Command::kCheck:
    case Command::kCheckByte: {
      const auto address = in.Get<uint64_t>();
      const auto length = in.Get<uint64_t>();
      const auto value = in.Get<uint64_t>();
      const auto byte = static_cast<uint8_t>(value);
      if (command == Command::kFill) node.Fill(address, length, value);
      if (command == Command::kFillByte) node.FillByte(address, length, byte);
      if (command == Command::kCheck) out.Put(node.Check(address, length, value));
      if (command == Command::kCheckByte) out.Put(node.CheckByte(address, length, byte));
      break;
    }
    case Command::kMapRemote: {
      const auto peer = in.Get<PeerId>();
      const auto address = in.Get<uint64_t>();
      const auto key = in.Get<uint64_t>();
      out.Put(node.MapRemote(peer, address, key, in.Get<uint64_t>()));
      break;
    }
    case Command::kQuit:
      break;
  }
  return out;
}

}  // namespace

int RunNodeServer(UniqueFd socket, const std::string& fabric_name, const DomainShape& shape) {
  std::shared_ptr<ConformanceFabric> fabric = MakeConformanceFabric(fabric_name);
  if (!fabric) return 2;
  auto node = DirectNode::Create(std::move(fabric), shape);
  Status made;
  if (!node.has_value()) made = tl::unexpected<Error>(node.error());
  if (!Parcel().PutResult(made).Send(socket.get()) || !node.has_value()) return 3;

  std::vector<Completion> inbox;
  for (;;) {
    const auto completions = (*node)->Poll();
    inbox.insert(inbox.end(), completions.begin(), completions.end());
    pollfd polled = {socket.get(), POLLIN, 0};
    if (poll(&polled, 1, 0) <= 0) {
      if (completions.empty()) sched_yield();
      continue;
    }
    auto in = Parcel::Receive(socket.get());
    if (!in.has_value()) return 0;
    const auto command = in->Get<Command>();
    const Parcel answer = Execute(**node, inbox, command, *in);
    // Between the command's use of memory and what a peer writes there because of the answer. Without it
    // ThreadSanitizer saw no order, which leads through the other process, between this thread and a device's.
    const auto completions_before = (*node)->Poll();
    inbox.insert(inbox.end(), completions_before.begin(), completions_before.end());
    if (!answer.Send(socket.get()) || command == Command::kQuit) return 0;
  }
}

}  // namespace jax_fabric::conformance
