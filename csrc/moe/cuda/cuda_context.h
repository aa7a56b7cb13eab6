// One rank of an expert-parallel context on a GPU: its memory there, its peers, its channels.
//
// Peers whose memory the GPU can reach get their messages by its kernels' stores, and flags by which their kernels
// know. To others the host brings messages, and tells kernels of theirs: from host memory into host memory, or, by NICs
// that reach memory of GPUs, from there to there. On each of two ranks the other one is of the same sort.
//
// XLA replays launches that it has recorded without asking anybody, and a membership epoch later a context takes the
// place of this one. So whatever launches name (RecordedMemory) passes from context to context, and says where the rest
// is: slots and flags, which peers of an earlier epoch may still write into, are each context's own.
#ifndef JAX_FABRIC_MOE_CUDA_CUDA_CONTEXT_H_
#define JAX_FABRIC_MOE_CUDA_CUDA_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/moe/cuda/cuda_channel.h"
#include "csrc/moe/cuda/device_lines.h"
#include "csrc/moe/cuda/device_memory.h"
#include "csrc/moe/cuda/mapped_memory.h"
#include "csrc/moe/cuda/message_route.h"
#include "csrc/moe/peer_connector.h"
#include "csrc/moe/proxied_channel.h"
#include "csrc/moe/rank_context.h"

namespace jax_fabric::moe {

class CudaContext final : public RankContext {
 public:
  struct Options {
    int device = 0;  // as CUDA numbers it in this process
    MessageRoute route = MessageRoute::kKernelStores;
    uint64_t node = 0;            // NodeNumber; 0: none, all go by NICs
    std::string gdrcopy_library;  // of GdrLibrary::Load
  };
  // Allocates the memory; `group` outlives the context. `predecessor`: the retired context of an earlier
  // epoch, of the same shape, whose recorded programs go on with this one; or null.
  static Result<std::unique_ptr<CudaContext>> Create(const MoeConfig& config, DomainGroup* group,
                                                     const Options& options, const CudaContext* predecessor);
  ~CudaContext() override;

  Platform platform() const override { return Platform::kCuda; }
  Result<Bytes> Introduction() const override;
  Status Connect(std::span<const Bytes> introductions, Deadline deadline) override;
  int32_t mapped_peers() const override;
  // Slots and, if the host sends them, their copies to be sent; flags, workspaces, and words between device and host.
  int64_t memory_bytes() const override;
  std::vector<int32_t> LostRanks() const override { return connector_->LostRanks(); }
  const Error* error() const override;
  std::optional<Error> TakeRefusal() override;
  bool Close(Deadline deadline) override;
  // Channels can be launched on for ever; all that their kernels do then is to say that there are no results.
  bool Retire() override;

  const MoeConfig& config() const { return config_; }
  // Null before Connect, or when there is no such channel.
  const CudaChannel* channel(int32_t index) const;

 private:
  struct RecordedMemory {
    DeviceMemory device;  // PrivateMemory of all channels
    MappedMemory host;    // their HostWords
    DeviceLines lines;    // or none, where the host cannot store into the device's memory
  };

  CudaContext(const MoeConfig& config, DomainGroup* group, const Options& options)
      : config_(config),
        group_(group),
        options_(options),
        connector_(std::make_unique<PeerConnector>(config_, group)),
        peers_(config.layout.shape.ranks) {}

  Status AllocateMemory();
  Status ExportMemory();
  // Of its own, or the predecessor's, as if nothing had been done with it.
  Status TakeRecordedMemory(const CudaContext* predecessor);
  bool IsReachedByStores(int32_t rank) const;
  Status OpenPeers();
  Status AllocateDeviceStaging();
  Status MakeChannel(int32_t index);
  // False: some channel may still be launched on as if nothing had happened.
  bool FailOnDevice();
  // From when peers are open.
  bool IsThroughHost(int32_t rank) const {
    return rank != config_.layout.shape.rank && !config_.IsAbsent(rank) && peers_[rank].data() == nullptr;
  }
  bool AnyThroughHost() const;
  // Launches tell the host of messages, and may be told by it: in all epochs, whoever takes part.
  bool tells_host() const { return options_.route != MessageRoute::kKernelStores && config_.layout.shape.ranks > 1; }
  bool in_host_memory() const { return options_.route == MessageRoute::kHostMemory; }
  // Where rank's message of that parity goes, and where one from it comes from, as the device sees it.
  std::byte* SendSlot(int32_t channel, int32_t rank, int parity) const;
  std::byte* ReceiveSlot(int32_t channel, int32_t rank, int parity) const;
  int64_t SlotsBytes() const { return config_.channels * config_.layout.ChannelBytes(); }
  int64_t FlagOffset(int32_t channel, int32_t source) const;
  template <typename T>
  Status Upload(T* to, const std::vector<T>& values) const;

  const MoeConfig config_;
  DomainGroup* const group_;
  const Options options_;
  // On the device, what peers write: slots, unless they are in host memory, and flags; and slots to be sent by NICs.
  // Before the connector, which has registered them.
  DeviceMemory shared_;
  DeviceMemory device_staging_;
  std::unique_ptr<PeerConnector> connector_;
  std::shared_ptr<const RecordedMemory> recorded_;
  std::vector<PeerDeviceMemory> peers_;  // of each rank that is reached by kernel stores; else empty
  Bytes exported_;                       // how to open shared_
  std::optional<Error> export_error_;    // or why nobody can
  // With host memory: the slots and the staging slots of the connector.
  MappedMemory host_slots_;
  MappedMemory staging_slots_;
  std::vector<std::unique_ptr<CudaChannel>> channels_;
  std::vector<std::unique_ptr<ProxiedChannel>> proxied_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CUDA_CUDA_CONTEXT_H_
