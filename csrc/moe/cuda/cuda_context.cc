#include "csrc/moe/cuda/cuda_context.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/moe/cuda/cuda_status.h"
#include "csrc/moe/cuda/device_guard.h"
#include "csrc/moe/cuda/private_memory.h"
#include "csrc/moe/cuda/write_ordering.h"

namespace jax_fabric::moe {
namespace {

// The part of one channel out of those of all.
template <typename Layout>
Layout PartOf(std::byte* base, int32_t channel, const kernels::SlotLayout& layout) {
  Parts parts(base);
  for (int32_t i = 0; i < channel; ++i) Layout skipped(parts, layout);
  return Layout(parts, layout);
}
template <typename Layout>
int64_t BytesOfAll(int32_t channels, const kernels::SlotLayout& layout) {
  Parts parts(nullptr);
  for (int32_t i = 0; i < channels; ++i) Layout counted(parts, layout);
  return parts.bytes();
}

Status OrThroughHostMemory(const Status& status) {
  if (status) return status;
  return MakeError(status.error().code, "{}. force_staged=True exchanges through host memory instead",
                   status.error().message);
}

// Of a GPU on the same node that cannot be reached by stores.
Error WithWayByNic(const MessageRoute route, const Error& error) {
  if (route != MessageRoute::kDeviceMemory) return error;
  return {error.code, error.message + "; node=\"\" sends by NICs"};
}

}  // namespace

Result<std::unique_ptr<CudaContext>> CudaContext::Create(const MoeConfig& config, DomainGroup* group,
                                                         const Options& options, const CudaContext* predecessor) {
  JF_RETURN_IF_ERROR(config.Validate());
  std::unique_ptr<CudaContext> context(new CudaContext(config, group, options));
  const DeviceGuard guard(options.device);
  JF_RETURN_IF_ERROR(FromCuda(guard.error(), "cudaSetDevice"));
  // Now, since loading one might wait for a kernel that runs.
  JF_RETURN_IF_ERROR(FromCuda(kernels::cuda::LoadKernels(), "loading kernels"));
  JF_RETURN_IF_ERROR(context->AllocateMemory());
  JF_RETURN_IF_ERROR(context->TakeRecordedMemory(predecessor));
  return context;
}

CudaContext::~CudaContext() = default;

// XLA replays or updates a program that it has recorded without asking whether it still can. Its kernels find that
// their channel has failed, and do not look at slots then; or that another context has taken over.
bool CudaContext::Retire() {
  proxied_.clear();
  peers_.clear();
  host_slots_ = {};
  staging_slots_ = {};
  const bool free = connector_ == nullptr || connector_->Deregister();
  connector_.reset();
  if (free) {
    shared_ = {};
    device_staging_ = {};
  } else {
    Log(LogLevel::kWarning, "GPU {}: {} bytes stay allocated: a NIC has not given them back", options_.device,
        shared_.bytes() + device_staging_.bytes());
  }
  return true;
}

int64_t CudaContext::FlagOffset(int32_t channel, int32_t source) const {
  const int64_t slots_bytes = in_host_memory() ? 0 : SlotsBytes();
  return slots_bytes + (int64_t{channel} * config_.layout.shape.ranks + source) * static_cast<int64_t>(sizeof(int64_t));
}

Status CudaContext::AllocateMemory() {
  JF_ASSIGN_OR_RETURN(shared_, DeviceMemory::Allocate(options_.device, FlagOffset(config_.channels, 0)));
  JF_RETURN_IF_ERROR(ExportMemory());
  // By kernel stores nothing is written there through the engine; it still has to be something.
  const bool by_stores_only = options_.route == MessageRoute::kKernelStores;
  PeerConnector::Options options{.memory_bytes = by_stores_only ? 8 : SlotsBytes(),
                                 .staging_bytes = in_host_memory() ? SlotsBytes() : 0,
                                 .node = options_.node,
                                 .map_peers = false,
                                 .memory_options = static_cast<uint64_t>(options_.route)};
  if (options_.route == MessageRoute::kDeviceMemory) {
    JF_RETURN_IF_ERROR(OrThroughHostMemory(CheckDirectAccess(options_.device)));
    options.device_memory = shared_.data();
    return OrThroughHostMemory(connector_->Prepare(options));
  }
  JF_RETURN_IF_ERROR(connector_->Prepare(options));
  if (!in_host_memory()) return {};
  JF_ASSIGN_OR_RETURN(host_slots_, MappedMemory::Register(options_.device, connector_->memory()));
  return {};
}

Status CudaContext::TakeRecordedMemory(const CudaContext* predecessor) {
  const int64_t device_bytes = BytesOfAll<PrivateMemory>(config_.channels, config_.layout);
  const int64_t host_bytes = BytesOfAll<HostWords>(config_.channels, config_.layout);
  if (predecessor == nullptr) {
    auto recorded = std::make_shared<RecordedMemory>();
    JF_ASSIGN_OR_RETURN(recorded->device, DeviceMemory::Allocate(options_.device, device_bytes));
    JF_ASSIGN_OR_RETURN(recorded->host, MappedMemory::Allocate(options_.device, host_bytes));
    if (tells_host()) {
      Result<DeviceLines> lines = DeviceLines::Allocate(options_.device, config_.channels, options_.gdrcopy_library);
      if (lines) {
        recorded->lines = std::move(*lines);
      } else {
        Log(LogLevel::kInfo, "GPU {}: the host tells kernels by words in its own memory: {}", options_.device,
            lines.error().message);
      }
    }
    recorded_ = std::move(recorded);
    return {};
  }
  recorded_ = predecessor->recorded_;
  if (recorded_->device.bytes() < device_bytes || recorded_->host.bytes() < host_bytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a context of {} + {} bytes cannot take the place of one of another configuration, with {} + {}",
                     device_bytes, host_bytes, recorded_->device.bytes(), recorded_->host.bytes());
  }
  std::memset(recorded_->host.host(), 0, host_bytes);
  if (recorded_->lines) recorded_->lines.Clear(config_.channels);
  JF_RETURN_IF_ERROR(recorded_->device.Clear());
  // Until the channels are made, if they ever are: launches must not look at tables that are empty.
  if (FailOnDevice()) return {};
  return MakeError(ErrorCode::kInternal, "GPU {}: its memory cannot be written", options_.device);
}

// Of no account where NICs reach all others.
Status CudaContext::ExportMemory() {
  if (in_host_memory()) return {};
  Result<Bytes> exported = shared_.Export();
  if (!exported && options_.route == MessageRoute::kKernelStores) return tl::unexpected(exported.error());
  if (exported) {
    exported_ = std::move(*exported);
  } else {
    export_error_ = exported.error();
  }
  return {};
}

Result<Bytes> CudaContext::Introduction() const { return connector_->Introduction(exported_); }

Status CudaContext::Connect(std::span<const Bytes> introductions, Deadline deadline) {
  JF_RETURN_IF_ERROR(connector_->Connect(introductions, deadline));
  const DeviceGuard guard(options_.device);
  JF_RETURN_IF_ERROR(OpenPeers());
  if (!in_host_memory() && AnyThroughHost()) JF_RETURN_IF_ERROR(AllocateDeviceStaging());
  if (!connector_->staging().empty()) {
    JF_ASSIGN_OR_RETURN(staging_slots_, MappedMemory::Register(options_.device, connector_->staging()));
  }
  for (int32_t index = 0; index < config_.channels; ++index) JF_RETURN_IF_ERROR(MakeChannel(index));
  for (const auto& channel : proxied_) channel->StartPolling();
  return {};
}

// The other rank answers the same of this one.
bool CudaContext::IsReachedByStores(int32_t rank) const {
  if (rank == config_.layout.shape.rank || config_.IsAbsent(rank)) return false;
  if (options_.route == MessageRoute::kDeviceMemory) return connector_->acquaintances()[rank].same_node;
  return options_.route == MessageRoute::kKernelStores;
}

bool CudaContext::AnyThroughHost() const {
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (IsThroughHost(rank)) return true;
  }
  return false;
}

Status CudaContext::AllocateDeviceStaging() {
  JF_ASSIGN_OR_RETURN(device_staging_, DeviceMemory::Allocate(options_.device, SlotsBytes()));
  return OrThroughHostMemory(connector_->RegisterDeviceStaging(device_staging_.data(), SlotsBytes()));
}

Status CudaContext::OpenPeers() {
  const int32_t ranks = config_.layout.shape.ranks;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (!IsReachedByStores(rank)) continue;
    const PeerConnector::Acquaintance& peer = connector_->acquaintances()[rank];
    if (export_error_) return tl::unexpected(WithWayByNic(options_.route, *export_error_));
    if (peer.device_memory.empty()) {
      const Error error{ErrorCode::kFailedPrecondition, "it cannot export its GPU's memory; its own error says why"};
      return MakeError(error.code, "rank {} cannot reach rank {}: {}", config_.layout.shape.rank, rank,
                       WithWayByNic(options_.route, error).message);
    }
    auto opened = PeerDeviceMemory::Open(options_.device, peer.device_memory, peer.same_process);
    if (!opened) {
      return MakeError(opened.error().code, "rank {} cannot reach rank {}: {}", config_.layout.shape.rank, rank,
                       WithWayByNic(options_.route, opened.error()).message);
    }
    if (opened->bytes() < FlagOffset(config_.channels, 0)) {
      return MakeError(ErrorCode::kInvalidArgument, "rank {} offers {} bytes of its GPU's memory, and {} are needed",
                       rank, opened->bytes(), FlagOffset(config_.channels, 0));
    }
    peers_[rank] = std::move(*opened);
  }
  return {};
}

std::byte* CudaContext::ReceiveSlot(int32_t channel, int32_t rank, int parity) const {
  std::byte* const base = in_host_memory() ? host_slots_.device() : shared_.data();
  return base + config_.ChannelOffset(channel) + config_.layout.SlotOffset(rank, parity);
}

std::byte* CudaContext::SendSlot(int32_t channel, int32_t rank, int parity) const {
  const int32_t me = config_.layout.shape.rank;
  // What the send kernel says to an absent rank, the exchange kernel replaces by what comes of it: nothing.
  if (rank == me || config_.IsAbsent(rank)) return ReceiveSlot(channel, rank, parity);
  if (IsThroughHost(rank)) {
    std::byte* const staging = in_host_memory() ? staging_slots_.device() : device_staging_.data();
    return staging + config_.ChannelOffset(channel) + config_.layout.SlotOffset(rank, parity);
  }
  return peers_[rank].data() + config_.ChannelOffset(channel) + config_.layout.SlotOffset(me, parity);
}

template <typename T>
Status CudaContext::Upload(T* to, const std::vector<T>& values) const {
  return FromCuda(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
}

Status CudaContext::MakeChannel(int32_t index) {
  const kernels::SlotLayout& layout = config_.layout;
  const int32_t ranks = layout.shape.ranks, me = layout.shape.rank;
  const auto on_device = PartOf<PrivateMemory>(recorded_->device.data(), index, layout);
  const auto words = PartOf<HostWords>(recorded_->host.host(), index, layout);
  const auto mapped_words = PartOf<HostWords>(recorded_->host.device(), index, layout);
  const PeerTable& table = connector_->table();
  std::vector<kernels::cuda::ExchangePeer> peers(ranks);
  std::vector<void*> send_slots(2 * ranks), receive_slots(2 * ranks);
  std::vector<uint8_t> through_host(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    peers[rank].incarnation = table.peers[rank].incarnation;
    peers[rank].absent = config_.IsAbsent(rank);
    through_host[rank] = IsThroughHost(rank);
    std::byte* const memory = rank == me ? shared_.data() : peers_[rank].data();
    if (memory != nullptr) peers[rank].flag = reinterpret_cast<int64_t*>(memory + FlagOffset(index, me));
    for (int parity = 0; parity < 2; ++parity) {
      send_slots[parity * ranks + rank] = SendSlot(index, rank, parity);
      receive_slots[parity * ranks + rank] = ReceiveSlot(index, rank, parity);
    }
  }
  JF_RETURN_IF_ERROR(Upload(on_device.peers, peers));
  JF_RETURN_IF_ERROR(Upload(on_device.send_slots, send_slots));
  JF_RETURN_IF_ERROR(Upload(on_device.receive_slots, receive_slots));
  if (!config_.absent.empty()) JF_RETURN_IF_ERROR(Upload(on_device.absent, config_.absent));
  const kernels::ChannelEpoch epoch{.incarnation = table.own_incarnation,
                                    .membership_epoch = config_.membership_epoch,
                                    .absent = config_.PresentRanks() == ranks ? nullptr : on_device.absent,
                                    .first_slot = ReceiveSlot(index, 0, 0),
                                    .flags = reinterpret_cast<const int64_t*>(shared_.data() + FlagOffset(index, 0))};
  JF_RETURN_IF_ERROR(Upload(on_device.state, std::vector{kernels::ChannelState{.epoch = epoch}}));

  const DeviceLines& lines = recorded_->lines;
  JF_ASSIGN_OR_RETURN(auto proxied,
                      ProxiedChannel::Create(index, config_, table, through_host, group_,
                                             {words.signals, words.message_bytes, words.missing, lines.host(index)}));
  CudaChannel::Memory memory;
  memory.exchange.state = on_device.state;
  memory.exchange.signals = mapped_words.signals;
  if (lines) memory.exchange.host = lines.on_device(index);
  memory.exchange.missing = mapped_words.missing;
  memory.exchange.peers = on_device.peers;
  memory.exchange.expert_rows = on_device.expert_rows;
  memory.exchange.through_host = tells_host();
  memory.exchange.timeout_ns = config_.timeout_us * 1000;
  memory.send_slots = on_device.send_slots;
  memory.receive_slots = on_device.receive_slots;
  memory.message_bytes = tells_host() ? mapped_words.message_bytes : on_device.message_bytes;
  memory.workspace = on_device.workspace;
  int multiprocessors = 0;
  JF_RETURN_IF_ERROR(FromCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, options_.device),
                              "multiprocessors"));
  channels_.push_back(std::make_unique<CudaChannel>(index, config_, multiprocessors, memory));
  proxied_.push_back(std::move(proxied));
  return {};
}

const CudaChannel* CudaContext::channel(int32_t index) const {
  if (index < 0 || index >= static_cast<int32_t>(channels_.size())) return nullptr;
  return channels_[index].get();
}

int32_t CudaContext::mapped_peers() const {
  return 1 + static_cast<int32_t>(std::count_if(peers_.begin(), peers_.end(),
                                                [](const PeerDeviceMemory& peer) { return peer.data() != nullptr; }));
}

int64_t CudaContext::memory_bytes() const {
  return shared_.bytes() + device_staging_.bytes() + recorded_->device.bytes() + recorded_->host.bytes() +
         recorded_->lines.bytes() + connector_->host_bytes();
}

const Error* CudaContext::error() const {
  for (const auto& channel : proxied_) {
    if (const Error* error = channel->error(); error != nullptr) return error;
  }
  return nullptr;
}

std::optional<Error> CudaContext::TakeRefusal() {
  for (const auto& channel : proxied_) {
    if (std::optional<Error> refusal = channel->TakeRefusal()) return refusal;
  }
  return {};
}

// Kernels that wait leave when the host says so (ProxiedChannel::Stop); those that come later do nothing.
bool CudaContext::FailOnDevice() {
  const DeviceGuard guard(options_.device);
  bool failed = true;
  for (int32_t index = 0; index < config_.channels; ++index) {
    kernels::ChannelState* state = PartOf<PrivateMemory>(recorded_->device.data(), index, config_.layout).state;
    constexpr auto kStopped = kernels::SignalError::kStopped;
    failed = cudaMemcpy(&state->error, &kStopped, sizeof(kStopped), cudaMemcpyHostToDevice) == cudaSuccess && failed;
  }
  return failed;
}

bool CudaContext::Close(Deadline deadline) {
  for (const auto& channel : proxied_) {
    // First: what it posted after Close nobody would cancel.
    channel->StopPolling();
    channel->Close();
  }
  bool quiet = FailOnDevice();
  for (const auto& channel : proxied_) {
    while (!channel->Quiet() && !deadline.Passed(group_->clock())) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    quiet = quiet && channel->Quiet();
  }
  return quiet;
}

}  // namespace jax_fabric::moe
