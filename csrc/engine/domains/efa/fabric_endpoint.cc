#include "csrc/engine/domains/efa/fabric_endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

namespace jax_fabric::efa {
namespace {

// Debian's headers are those of libfabric 1.17; these options came with 1.18 and are numbered so in all later ones.
constexpr int kOptCudaApiPermitted = 10;
constexpr int kOptSharedMemoryPermitted = 11;
constexpr int kOptEfaEmulatedWrite = -(0xefa << 16) + 2;

// Writes by the device came to the EFA provider with version 1.18 of the interface.
constexpr uint32_t kEfaApiVersion = FI_VERSION(1, 18);
constexpr uint32_t kApiVersion = FI_VERSION(1, 17);

constexpr size_t kControlEntries = 64;  // of the completion queue: heartbeats and the like

// Of endpoints over shm in this process.
class OwnNames {
 public:
  void Add(const Bytes& name) {
    Locked([&] { names_.insert(name); });
  }
  void Remove(const Bytes& name) {
    Locked([&] { names_.erase(name); });
  }
  bool Contains(ByteView name) {
    bool found = false;
    Locked([&] { found = names_.contains(Bytes(name.begin(), name.end())); });
    return found;
  }
  static OwnNames& Get() {
    static auto* names = new OwnNames();
    return *names;
  }

 private:
  template <typename Function>
  void Locked(const Function& function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    function();
  }
  std::mutex mutex_;
  std::set<Bytes> names_;
};

struct InfoFreer {
  const Libfabric* library;
  void operator()(fi_info* info) const { library->fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFreer>;

char* Copy(const std::string& text) { return text.empty() ? nullptr : strdup(text.c_str()); }  // fi_freeinfo frees it

// Since libfabric 2.0 the provider "efa" has two fabrics: "efa", with its own protocol over the device, and
// "efa-direct", the device's queues as they are.
constexpr char kEfa[] = "efa";
constexpr uint32_t kTwoFabricsVersion = FI_VERSION(2, 0);

Info Hints(const Libfabric* library, const EfaDomainOptions& options) {
  Info hints(library->fi_dupinfo(nullptr), InfoFreer{library});
  if (!hints) return hints;
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA | (options.device_memory ? FI_HMEM : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  const bool is_efa = options.provider.starts_with(kEfa);
  hints->fabric_attr->prov_name = Copy(is_efa ? kEfa : options.provider);
  if (is_efa && library->fi_version() >= kTwoFabricsVersion) hints->fabric_attr->name = Copy(options.provider);
  hints->domain_attr->name = Copy(options.nic);
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | (options.device_memory ? FI_MR_HMEM : 0);
  // Memory may be registered by any thread while the worker posts and polls.
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->cq_data_size = sizeof(uint32_t);
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;  // a full completion queue makes writers wait and loses nothing
  return hints;
}

}  // namespace

Result<std::unique_ptr<FabricEndpoint>> FabricEndpoint::Open(const EfaDomainOptions& options) {
  JF_ASSIGN_OR_RETURN(const Libfabric* library, Libfabric::Load(options.library));
  std::unique_ptr<FabricEndpoint> endpoint(new FabricEndpoint(library));
  JF_RETURN_IF_ERROR(endpoint->Choose(options));
  JF_RETURN_IF_ERROR(endpoint->OpenObjects(options));
  return endpoint;
}

FabricEndpoint::~FabricEndpoint() {
  if (is_shm_) OwnNames::Get().Remove(name_);
  ep_.reset();
  queue_.reset();
  events_.reset();
  av_.reset();
  domain_.reset();
  fabric_.reset();
  if (info_ != nullptr) library_->fi_freeinfo(info_);
}

Status FabricEndpoint::Choose(const EfaDomainOptions& options) {
  is_efa_ = options.provider.starts_with(kEfa);
  is_shm_ = options.provider == "shm";
  if (is_efa_ && library_->fi_version() < kEfaApiVersion) {
    return MakeError(ErrorCode::kUnimplemented,
                     "provider 'efa' needs libfabric 1.18 or newer for writes by the device, and this is {}: install "
                     "Amazon's EFA installer",
                     library_->Version());
  }
  const Info hints = Hints(library_, options);
  if (!hints) return MakeError(ErrorCode::kResourceExhausted, "libfabric: no memory for a request of providers");
  const char* node = options.source_address.empty() ? nullptr : options.source_address.c_str();
  const auto choose = [&] {
    return library_->fi_getinfo(is_efa_ ? kEfaApiVersion : kApiVersion, node, nullptr, node == nullptr ? 0 : FI_SOURCE,
                                hints.get(), &info_);
  };
  int error = choose();
  if (error != 0 && is_efa_) {
    // Older devices and libraries: only as a second choice, for the provider would do so also where it need not.
    hints->mode |= FI_RX_CQ_DATA;
    error = choose();
    immediates_take_receives_ = error == 0 && (info_->mode & FI_RX_CQ_DATA) != 0;
  }
  if (error == 0) return {};
  info_ = nullptr;
  return MakeError(ErrorCode::kNotFound,
                   "no NIC '{}' of libfabric's provider '{}' (source address '{}'): {}. Found: {}",
                   options.nic.empty() ? "any" : options.nic, options.provider, options.source_address,
                   library_->Words(error), Found(options));
}

std::string FabricEndpoint::Found(const EfaDomainOptions& options) const {
  EfaDomainOptions any = options;
  any.provider.clear();
  any.nic.clear();
  const Info hints = Hints(library_, any);
  fi_info* list = nullptr;
  if (!hints || library_->fi_getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &list) != 0) {
    return fmt::format("nothing that can write, by libfabric {}", library_->Version());
  }
  std::set<std::string> seen;
  for (const fi_info* info = list; info != nullptr; info = info->next) {
    seen.insert(fmt::format("{} on {}", info->fabric_attr->prov_name,
                            info->domain_attr->name == nullptr ? "?" : info->domain_attr->name));
  }
  library_->fi_freeinfo(list);
  return fmt::format("{} (libfabric {})", fmt::join(seen, ", "), library_->Version());
}

Status FabricEndpoint::OpenObjects(const EfaDomainOptions& options) {
  const auto check = [&](const char* step, int64_t error) -> Status {
    if (error == 0) return {};
    return MakeError(ErrorCode::kUnavailable, "{} of provider '{}' on '{}': {}", step, options.provider,
                     info_->domain_attr->name, library_->Words(error));
  };
  fid_fabric* fabric = nullptr;
  JF_RETURN_IF_ERROR(check("fi_fabric", library_->fi_fabric(info_->fabric_attr, &fabric, nullptr)));
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  JF_RETURN_IF_ERROR(check("fi_domain", fi_domain(fabric, info_, &domain, nullptr)));
  domain_.reset(domain);

  fi_av_attr av_attributes = {};
  av_attributes.type = FI_AV_TABLE;
  fid_av* av = nullptr;
  JF_RETURN_IF_ERROR(check("fi_av_open", fi_av_open(domain, &av_attributes, &av, nullptr)));
  av_.reset(av);
  fi_cq_attr cq_attributes = {};
  cq_attributes.format = FI_CQ_FORMAT_DATA;
  cq_attributes.wait_obj = FI_WAIT_NONE;
  const size_t own = std::min<size_t>(info_->tx_attr->size, 2 * size_t{options.max_outstanding} + kControlEntries);
  cq_attributes.size = own + options.completion_entries;
  fid_cq* queue = nullptr;
  JF_RETURN_IF_ERROR(check("fi_cq_open", fi_cq_open(domain, &cq_attributes, &queue, nullptr)));
  queue_.reset(queue);

  fid_ep* ep = nullptr;
  JF_RETURN_IF_ERROR(check("fi_endpoint", fi_endpoint(domain, info_, &ep, nullptr)));
  ep_.reset(ep);
  JF_RETURN_IF_ERROR(check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0)));
  JF_RETURN_IF_ERROR(check("fi_ep_bind", fi_ep_bind(ep, &queue->fid, FI_TRANSMIT | FI_RECV)));
  if (is_efa_) {
    fi_eq_attr event_attributes = {};
    event_attributes.wait_obj = FI_WAIT_NONE;
    fid_eq* events = nullptr;
    JF_RETURN_IF_ERROR(check("fi_eq_open", fi_eq_open(fabric, &event_attributes, &events, nullptr)));
    events_.reset(events);
    JF_RETURN_IF_ERROR(check("fi_ep_bind", fi_ep_bind(ep, &events->fid, 0)));
  }
  JF_RETURN_IF_ERROR(SetOptions(options.device_memory));
  JF_RETURN_IF_ERROR(check("fi_enable", fi_enable(ep)));
  std::array<std::byte, 512> name;
  size_t size = name.size();
  JF_RETURN_IF_ERROR(check("fi_getname", fi_getname(&ep->fid, name.data(), &size)));
  name_.assign(name.begin(), name.begin() + static_cast<ptrdiff_t>(size));
  if (is_shm_) OwnNames::Get().Add(name_);
  return {};
}

Status FabricEndpoint::SetOptions(bool device_memory) {
  if (!is_efa_) return {};
  // Peers of one machine have the local domain; the provider's own path copies by the CPU and orders differently.
  bool no = false;
  if (const int error = fi_setopt(&ep_->fid, FI_OPT_ENDPOINT, kOptSharedMemoryPermitted, &no, sizeof(no)); error != 0) {
    return MakeError(ErrorCode::kUnavailable, "the EFA provider's shared memory cannot be switched off: {}",
                     library_->Words(error));
  }
  // The worker makes no CUDA call while a kernel spins. A provider without this option makes none for host memory.
  const int direct = fi_setopt(&ep_->fid, FI_OPT_ENDPOINT, kOptCudaApiPermitted, &no, sizeof(no));
  if (direct != 0 && device_memory) {
    return MakeError(ErrorCode::kUnavailable, "'{}' reaches memory of GPUs by calls into CUDA only, if at all: {}",
                     info_->domain_attr->name, library_->Words(direct));
  }
  bool emulated = true;
  size_t size = sizeof(emulated);
  const int error = fi_getopt(&ep_->fid, FI_OPT_ENDPOINT, kOptEfaEmulatedWrite, &emulated, &size);
  if (error == 0 && !emulated) return {};
  return MakeError(ErrorCode::kUnimplemented,
                   "'{}' does not write by itself ({}): it needs an EFA NIC with RDMA write, as on p5 and newer",
                   info_->domain_attr->name, error == 0 ? "the provider emulates it" : library_->Words(error));
}

std::string FabricEndpoint::TakeError() {
  if (!events_) return {};
  uint32_t event = 0;
  std::array<std::byte, 256> entry;
  if (fi_eq_read(events_.get(), &event, entry.data(), entry.size(), 0) != -FI_EAVAIL) return {};
  fi_eq_err_entry error = {};
  if (fi_eq_readerr(events_.get(), &error, 0) < 0) return {};
  const char* words = fi_eq_strerror(events_.get(), error.prov_errno, error.err_data, nullptr, 0);
  return fmt::format("{} on '{}'; the provider says: {} ({})", library_->Words(error.err), info_->domain_attr->name,
                     words == nullptr ? "nothing" : words, error.prov_errno);
}

Result<fi_addr_t> FabricEndpoint::Insert(ByteView name) {
  if (is_shm_ && OwnNames::Get().Contains(name)) {
    return MakeError(
        ErrorCode::kUnimplemented,
        "provider 'shm' cannot connect two domains of one process: it would use the memory of the one that "
        "is closed first. Take provider 'tcp', or one process for each rank");
  }
  Bytes key(name.begin(), name.end());
  if (const auto known = inserted_.find(key); known != inserted_.end()) return known->second;
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  const int inserted = fi_av_insert(av_.get(), name.data(), 1, &address, 0, nullptr);
  if (inserted == 1) {
    inserted_.emplace(std::move(key), address);
    return address;
  }
  return MakeError(ErrorCode::kInvalidArgument, "libfabric refuses a peer's address of {} bytes: {}", name.size(),
                   library_->Words(inserted < 0 ? inserted : FI_EINVAL));
}

void FabricEndpoint::Remove(fi_addr_t address, bool left) {
  if (is_efa_ && !left) return;
  fi_av_remove(av_.get(), &address, 1, 0);
  std::erase_if(inserted_, [&](const auto& each) { return each.second == address; });
}

}  // namespace jax_fabric::efa
