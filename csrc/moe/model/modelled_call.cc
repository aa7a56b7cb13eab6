#include "csrc/moe/model/modelled_call.h"

#include <algorithm>
#include <cstring>

namespace jax_fabric::moe::model {
namespace {

using kernels::Entry;
using kernels::MessageHeader;
using kernels::RowMeta;
using kernels::SlotLayout;

int64_t Share(int64_t nanoseconds, double share) {
  return static_cast<int64_t>(static_cast<double>(nanoseconds) * share);
}

}  // namespace

int64_t ModelledCall::Rows(int32_t from, int32_t to, int32_t round) const {
  const Workload& workload = setting_.workload;
  return dispatch() ? workload.RowsInRound(from, to, round) : workload.RowsInRound(to, from, round);
}

int64_t ModelledCall::FirstRow(int32_t from, int32_t to, int32_t round) const {
  const Workload& workload = setting_.workload;
  return dispatch() ? workload.FirstRow(from, to, round) : workload.FirstRow(to, from, round);
}

int32_t ModelledCall::rounds() const {
  const bool known = knows_rounds_ || !dispatch() || setting_.layout.shape.MaxRounds() == 1;
  return known ? setting_.workload.rounds() : 0;
}

kernels::ExpectedRows ModelledCall::RowsOf(int32_t round, int32_t source) const {
  if (dispatch() && round == 0) return {};
  return {.round = round, .rows = Rows(source, me(), round), .first_row = FirstRow(source, me(), round)};
}

void ModelledCall::Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) {
  const ModelOptions& options = setting_.options;
  const kernels::MoeShape& shape = setting_.layout.shape;
  MessageHeader header;
  header.magic = kernels::kMessageMagic;
  header.version = kernels::kMessageVersion;
  header.kind = static_cast<uint16_t>(kind());
  header.incarnation = stamp.incarnation;
  header.signature = stamp.signature;
  header.sequence = stamp.sequence;
  header.channel = stamp.channel;
  header.membership_epoch = stamp.membership_epoch;
  for (int32_t target = 0; target < shape.ranks; ++target) {
    message_bytes[target] = PackMessage(round, target, header, static_cast<std::byte*>(slots[target]));
    if (target == me()) continue;
    ++setting_.device.writes;
    if (!options.SameNode(me(), target)) setting_.device.wire_bytes += message_bytes[target];
  }
  const KernelTimes& times = options.kernels;
  int64_t packed_ns = setting_.ranks.now_ns();
  if (round > 0) {
    // Kernels of later rounds are launched ahead.
    const int64_t send_ns = dispatch() ? times.dispatch_send_ns : times.combine_send_ns;
    const int64_t moving_ns = std::max<int64_t>(0, send_ns - times.launch_ns);
    packed_ns = setting_.device.Run(packed_ns, Share(moving_ns, setting_.workload.ShareOfRound(me(), round)));
  }
  setting_.ranks[me()].nic->HoldPosts(packed_ns + times.host_ns);
}

int64_t ModelledCall::PackMessage(int32_t round, int32_t target, MessageHeader header, std::byte* slot) const {
  const SlotLayout& layout = setting_.layout;
  const int64_t rows = Rows(me(), target, round);
  header.rows = static_cast<uint32_t>(rows);
  header.first_row = static_cast<uint32_t>(FirstRow(me(), target, round));
  header.payload_offset = layout.PlainPayloadOffset();
  int64_t bytes = layout.PlainPayloadOffset() + rows * layout.DispatchRowBytes();
  if (!dispatch()) {
    bytes = layout.CombineMessageBytes(rows, /*with_scalars=*/false);
  } else if (round == 0) {
    bytes = PackMetadata(target, header, slot) + rows * layout.DispatchRowBytes();
  }
  std::memcpy(slot, &header, sizeof(header));
  return bytes;
}

int64_t ModelledCall::PackMetadata(int32_t target, MessageHeader& header, std::byte* slot) const {
  const SlotLayout& layout = setting_.layout;
  const kernels::MoeShape& shape = layout.shape;
  const Workload& workload = setting_.workload;
  auto* counts = reinterpret_cast<uint32_t*>(slot + layout.CountsOffset());
  for (int32_t rank = 0; rank < shape.ranks; ++rank) {
    counts[rank] = static_cast<uint32_t>(workload.Rows(me(), rank));
    counts[shape.ranks + rank] = static_cast<uint32_t>(workload.Entries(me(), rank));
  }
  auto* round_rows = reinterpret_cast<uint32_t*>(slot + layout.RoundRowsOffset());
  for (int32_t r = 0; r < shape.MaxRounds(); ++r) {
    round_rows[r] = static_cast<uint32_t>(workload.RowsInRound(me(), target, r));
  }
  const int64_t rows = workload.Rows(me(), target);
  const int64_t entries = workload.Entries(me(), target);
  auto* local_rows = reinterpret_cast<uint32_t*>(slot + layout.LocalRowsOffset());
  std::fill_n(local_rows, shape.experts_per_rank, 0);
  auto* meta = reinterpret_cast<RowMeta*>(slot + layout.RowMetaOffset());
  auto* entry = reinterpret_cast<Entry*>(slot + layout.EntriesOffset(rows));
  int64_t begin = 0;
  for (int64_t row = 0; row < rows; ++row) {
    meta[row] = {static_cast<uint32_t>(row), static_cast<uint32_t>(begin)};
    // As evenly as the counts allow: which row has how many changes no size.
    const int64_t end = (row + 1) * entries / rows;
    for (int64_t i = begin; i < end; ++i) {
      entry[i] = {static_cast<uint32_t>(i - begin), 1.0f};
      ++local_rows[i - begin];
    }
    begin = end;
  }
  header.expert_rows = static_cast<uint32_t>(entries);
  header.rounds = static_cast<uint32_t>(workload.RoundsOf(me()));
  header.payload_offset = layout.DispatchPayloadOffset(rows, entries);
  return static_cast<int64_t>(header.payload_offset);
}

int64_t ModelledCall::FirstSendNs(const Setting& setting, kernels::ExchangeKind kind) {
  const KernelTimes& times = setting.options.kernels;
  const bool dispatch = kind == kernels::ExchangeKind::kDispatch;
  const int64_t send_ns = dispatch ? times.dispatch_send_ns : times.combine_send_ns;
  const int64_t launch_ns = std::min(send_ns, times.launch_ns);
  return launch_ns + Share(send_ns - launch_ns, setting.workload.ShareOfRound(setting.layout.shape.rank, 0));
}

Status ModelledCall::Unpack(int32_t round, const void* const*) {
  const KernelTimes& times = setting_.options.kernels;
  const int64_t receive_ns = dispatch() ? times.dispatch_receive_ns : times.combine_receive_ns;
  // Of a dispatch's rows the sources have their own shares; one stands for all.
  setting_.device.Run(setting_.ranks.now_ns(), Share(receive_ns, setting_.workload.ShareOfRound(me(), round)));
  knows_rounds_ = true;
  return {};
}

}  // namespace jax_fabric::moe::model
