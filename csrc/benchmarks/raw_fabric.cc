#include "csrc/benchmarks/raw_fabric.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace jax_fabric::benchmarks {
namespace {

constexpr size_t kReceiveEntries = 8192;
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
  contexts_.resize(info_->tx_attr->size);
  for (fi_context2& each : contexts_) free_.push_back(&each);
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
  void* descriptor = fi_mr_desc(region_);
  iovec local{nullptr, batch.write_bytes};
  fi_rma_iov remote{0, batch.write_bytes, remote_.key};
  fi_msg_rma message{&local, &descriptor, 1, target_, &remote, 1, nullptr, 0};
  const uint64_t flags =
      FI_COMPLETION | FI_DELIVERY_COMPLETE | (batch.immediates ? uint64_t{FI_REMOTE_CQ_DATA} : uint64_t{0});
  const size_t count = batch.offsets.size();
  ProgressGuard guard;
  size_t posted = 0;
  for (size_t done = 0; done < count;) {
    const size_t end = std::min({count, done + batch.window, posted + free_.size()});
    for (; posted < end; ++posted) {
      local.iov_base = memory_.data() + batch.offsets[posted];
      remote.addr = remote_.address + batch.offsets[posted];
      message.context = free_.back();
      const auto error = fi_writemsg(endpoint_, &message, flags | (posted + 1 < end ? uint64_t{FI_MORE} : uint64_t{0}));
      if (error == -FI_EAGAIN) break;
      JF_RETURN_IF_ERROR(Check("fi_writemsg", error));
      free_.pop_back();
    }
    JF_ASSIGN_OR_RETURN(const size_t read, Read());
    if (read == 0) JF_RETURN_IF_ERROR(guard.Idle("raw libfabric"));
    if (read > 0) guard.Moved();
    done += read;
  }
  return {};
}

Result<size_t> RawFabric::Read() {
  std::array<fi_cq_data_entry, kCompletionsPerPoll> entries;
  const auto read = fi_cq_read(send_queue_, entries.data(), entries.size());
  if (read == -FI_EAGAIN) return size_t{0};
  if (read < 0) return MakeError(ErrorCode::kInternal, "fi_cq_read: {}", fi_strerror(static_cast<int>(-read)));
  for (size_t i = 0; i < static_cast<size_t>(read); ++i) {
    free_.push_back(static_cast<fi_context2*>(entries[i].op_context));
  }
  return static_cast<size_t>(read);
}

void RawFabric::Poll() {
  std::array<fi_cq_data_entry, kCompletionsPerPoll> entries;
  fi_cq_read(receive_queue_, entries.data(), entries.size());
}

}  // namespace jax_fabric::benchmarks
