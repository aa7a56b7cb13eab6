#include "csrc/benchmarks/raw_fabric.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

namespace jax_fabric::benchmarks {
namespace {

constexpr size_t kReceiveEntries = 8192;
constexpr uint64_t kFlags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
constexpr uint32_t kReadsPerRefusal = 16;
constexpr uint64_t kKey = 1;  // of providers that let us choose

Status Check(const char* step, int64_t error) {
  if (error == 0) return {};
  return MakeError(ErrorCode::kUnavailable, "{}: {}", step, fi_strerror(static_cast<int>(-error)));
}

template <typename Object>
void Close(Object* object) {
  if (object != nullptr) fi_close(&object->fid);
}

}  // namespace

Result<std::unique_ptr<RawFabric>> RawFabric::Create(const std::string& provider, std::span<std::byte> memory) {
  std::unique_ptr<RawFabric> made(new RawFabric(memory));
  JF_RETURN_IF_ERROR(made->Open(provider));
  return made;
}

RawFabric::~RawFabric() {
  Close(endpoint_);
  Close(region_);
  Close(receive_queue_);
  Close(send_queue_);
  Close(addresses_);
  Close(domain_);
  Close(fabric_);
  if (info_ != nullptr) fi_freeinfo(info_);
}

Status RawFabric::Open(const std::string& provider) {
  fi_info* hints = fi_allocinfo();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->cq_data_size = sizeof(uint32_t);
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  const bool over_tcp = provider.starts_with("tcp");
  const int found =
      fi_getinfo(FI_VERSION(1, 17), over_tcp ? "127.0.0.1" : nullptr, nullptr, over_tcp ? FI_SOURCE : 0, hints, &info_);
  fi_freeinfo(hints);
  JF_RETURN_IF_ERROR(Check("fi_getinfo", found));
  JF_RETURN_IF_ERROR(Check("fi_fabric", fi_fabric(info_->fabric_attr, &fabric_, nullptr)));
  JF_RETURN_IF_ERROR(Check("fi_domain", fi_domain(fabric_, info_, &domain_, nullptr)));
  fi_av_attr table = {};
  table.type = FI_AV_TABLE;
  JF_RETURN_IF_ERROR(Check("fi_av_open", fi_av_open(domain_, &table, &addresses_, nullptr)));
  fi_cq_attr queue = {};
  queue.format = FI_CQ_FORMAT_DATA;
  queue.size = info_->tx_attr->size;
  JF_RETURN_IF_ERROR(Check("fi_cq_open", fi_cq_open(domain_, &queue, &send_queue_, nullptr)));
  queue.size = kReceiveEntries;
  JF_RETURN_IF_ERROR(Check("fi_cq_open", fi_cq_open(domain_, &queue, &receive_queue_, nullptr)));
  JF_RETURN_IF_ERROR(Check("fi_endpoint", fi_endpoint(domain_, info_, &endpoint_, nullptr)));
  JF_RETURN_IF_ERROR(Check("fi_ep_bind", fi_ep_bind(endpoint_, &addresses_->fid, 0)));
  JF_RETURN_IF_ERROR(Check("fi_ep_bind", fi_ep_bind(endpoint_, &send_queue_->fid, FI_TRANSMIT)));
  JF_RETURN_IF_ERROR(Check("fi_ep_bind", fi_ep_bind(endpoint_, &receive_queue_->fid, FI_RECV)));
  JF_RETURN_IF_ERROR(Check("fi_enable", fi_enable(endpoint_)));
  operations_.resize(info_->tx_attr->size);
  for (Operation& each : operations_) free_.push_back(&each);
  return Check("fi_mr_reg", fi_mr_reg(domain_, memory_.data(), memory_.size(), FI_WRITE | FI_REMOTE_WRITE, 0, kKey, 0,
                                      &region_, nullptr));
}

Result<Introduction> RawFabric::Introduce() {
  Introduction own;
  own.address.resize(512);
  size_t size = own.address.size();
  JF_RETURN_IF_ERROR(Check("fi_getname", fi_getname(&endpoint_->fid, own.address.data(), &size)));
  own.address.resize(size);
  Remote remote;
  const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  remote.address = by_address ? reinterpret_cast<uint64_t>(memory_.data()) : 0;
  remote.key = fi_mr_key(region_);
  own.memory.resize(sizeof(remote));
  std::memcpy(own.memory.data(), &remote, sizeof(remote));
  return own;
}

Status RawFabric::Connect(const Introduction& target) {
  std::memcpy(&remote_, target.memory.data(), sizeof(remote_));
  if (fi_av_insert(addresses_, target.address.data(), 1, &target_, 0, nullptr) == 1) return {};
  return MakeError(ErrorCode::kUnavailable, "fi_av_insert refuses the target's address");
}

Status RawFabric::Write(const Batch& batch) {
  const size_t count = batch.offsets.size();
  ProgressGuard guard;
  size_t posted = 0;
  for (size_t done = 0; done < count;) {
    if (reads_before_posting_ == 0) {
      JF_RETURN_IF_ERROR(PostWrites(batch, posted, std::min({count, done + batch.window, posted + free_.size()})));
    }
    if (!arrived_.empty()) JF_RETURN_IF_ERROR(PostImmediates());
    JF_ASSIGN_OR_RETURN(const size_t read, Read());
    if (read == 0) JF_RETURN_IF_ERROR(guard.Idle("raw libfabric"));
    if (read > 0) guard.Moved();
    done += read;
  }
  return {};
}

Status RawFabric::PostWrites(const Batch& batch, size_t& posted, size_t end) {
  void* descriptor = fi_mr_desc(region_);
  iovec local{nullptr, batch.write_bytes};
  fi_rma_iov remote{0, batch.write_bytes, remote_.key};
  fi_msg_rma message{&local, &descriptor, 1, target_, &remote, 1, nullptr, 0};
  const bool together = batch.immediates && !batch.raw_immediates_apart;
  const uint64_t flags = kFlags | (together ? uint64_t{FI_REMOTE_CQ_DATA} : uint64_t{0});
  for (; posted < end; ++posted) {
    local.iov_base = memory_.data() + batch.offsets[posted];
    remote.addr = remote_.address + batch.offsets[posted];
    Operation* operation = free_.back();
    operation->immediate_follows = batch.raw_immediates_apart;
    message.context = operation;
    const auto error = fi_writemsg(endpoint_, &message, flags | (posted + 1 < end ? uint64_t{FI_MORE} : uint64_t{0}));
    if (error == -FI_EAGAIN) {
      reads_before_posting_ = kReadsPerRefusal;
      return {};
    }
    JF_RETURN_IF_ERROR(Check("fi_writemsg", error));
    free_.pop_back();
  }
  return {};
}

Status RawFabric::PostImmediates() {
  void* descriptor = fi_mr_desc(region_);
  iovec local{memory_.data(), 0};
  fi_rma_iov remote{remote_.address, 0, remote_.key};
  fi_msg_rma message{&local, &descriptor, 1, target_, &remote, 1, nullptr, 0};
  for (; !arrived_.empty(); arrived_.pop_back()) {
    message.context = arrived_.back();
    const auto error = fi_writemsg(endpoint_, &message, kFlags | FI_REMOTE_CQ_DATA);
    if (error == -FI_EAGAIN) return {};
    JF_RETURN_IF_ERROR(Check("fi_writemsg", error));
  }
  return {};
}

Result<size_t> RawFabric::Read() {
  std::array<fi_cq_data_entry, kCompletionsPerPoll> entries;
  const auto read = fi_cq_read(send_queue_, entries.data(), entries.size());
  if (reads_before_posting_ > 0) --reads_before_posting_;
  if (read == -FI_EAGAIN) return size_t{0};
  if (read < 0) return MakeError(ErrorCode::kInternal, "fi_cq_read: {}", fi_strerror(static_cast<int>(-read)));
  reads_before_posting_ = 0;
  size_t done = 0;
  for (size_t i = 0; i < static_cast<size_t>(read); ++i) {
    auto* operation = static_cast<Operation*>(entries[i].op_context);
    const bool follows = std::exchange(operation->immediate_follows, false);
    (follows ? arrived_ : free_).push_back(operation);
    done += follows ? 0 : 1;
  }
  return done;
}

void RawFabric::Poll() {
  std::array<fi_cq_data_entry, kCompletionsPerPoll> entries;
  const auto read = fi_cq_read(receive_queue_, entries.data(), entries.size());
  for (int64_t i = 0; i < read; ++i) {
    if ((entries[static_cast<size_t>(i)].flags & FI_REMOTE_CQ_DATA) != 0) ++immediates_;
  }
  if (read >= 0 || read == -FI_EAGAIN) return;
  std::fprintf(stderr, "raw libfabric's target: fi_cq_read: %s\n", fi_strerror(static_cast<int>(-read)));
  _exit(1);
}

}  // namespace jax_fabric::benchmarks
