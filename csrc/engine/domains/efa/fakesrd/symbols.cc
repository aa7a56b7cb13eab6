// The symbols of libibverbs and libefa that libfabric's efa provider uses.
#include <infiniband/verbs.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "csrc/engine/domains/efa/fakesrd/device.h"
#include "csrc/engine/domains/efa/fakesrd/fake_srd.h"
#include "csrc/engine/domains/efa/fakesrd/gids.h"
#include "csrc/engine/domains/efa/fakesrd/sysfs.h"
#include "csrc/engine/domains/efa/fakesrd/work_requests.h"

namespace jax_fabric::fake_srd {
namespace {

struct Context : verbs_context {
  std::unique_ptr<Device> opened;
};

Context& ContextOf(ibv_context* context) {
  return static_cast<Context&>(
      *reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(context) - offsetof(verbs_context, context)));
}
Device& DeviceOf(ibv_context* context) { return *ContextOf(context).opened; }

struct Process {
  std::mutex mutex;
  Faults faults;
  Statistics closed;  // of devices that are closed
  std::set<Device*> devices;
};
Process& process() {
  static auto* process = new Process();
  return *process;
}

void Add(Statistics& to, const Statistics& from) {
  to.requests += from.requests;
  to.segments += from.segments;
  to.overtaken += from.overtaken;
  to.refused_posts += from.refused_posts;
  to.not_ready += from.not_ready;
  to.overruns += from.overruns;
}

int QueryPort(ibv_context*, uint8_t, ibv_port_attr* out, size_t size) {
  ibv_port_attr port;
  std::memset(static_cast<void*>(&port), 0, sizeof(port));
  port.state = IBV_PORT_ACTIVE;
  port.max_mtu = port.active_mtu = IBV_MTU_4096;
  port.gid_tbl_len = 1;
  port.pkey_tbl_len = 1;
  port.max_msg_sz = Device::kMaxMessageBytes;
  port.phys_state = 5;  // link up
  port.active_speed = 32;
  port.active_width = 2;
  port.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  std::memcpy(static_cast<void*>(out), &port, std::min(size, sizeof(port)));
  return 0;
}

}  // namespace

void SetFaults(const Faults& faults) {
  const std::lock_guard<std::mutex> lock(process().mutex);
  process().faults = faults;
  for (Device* device : process().devices) device->SetFaults(faults);
}

Statistics ReadStatistics() {
  const std::lock_guard<std::mutex> lock(process().mutex);
  Statistics all = process().closed;
  for (Device* device : process().devices) Add(all, device->statistics());
  return all;
}

}  // namespace jax_fabric::fake_srd

using namespace jax_fabric::fake_srd;  // NOLINT: the symbols below are C's

#undef ibv_query_port
#undef ibv_reg_mr

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  static ibv_device device = {};
  const std::string folder = SysfsFolder();
  device.node_type = IBV_NODE_UNSPECIFIED;
  device.transport_type = IBV_TRANSPORT_UNSPECIFIED;
  std::snprintf(device.name, sizeof(device.name), "fakesrd0");
  std::snprintf(device.dev_name, sizeof(device.dev_name), "uverbs0");
  std::snprintf(device.ibdev_path, sizeof(device.ibdev_path), "%s", folder.c_str());
  std::snprintf(device.dev_path, sizeof(device.dev_path), "%s", folder.c_str());
  auto** list = new ibv_device*[2]();
  if (!folder.empty()) list[0] = &device;
  if (count != nullptr) *count = folder.empty() ? 0 : 1;
  return list;
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }

ibv_context* ibv_open_device(ibv_device* device) {
  uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) return nullptr;
  auto context = std::make_unique<Context>();
  context->opened = std::make_unique<Device>(id);
  if (!context->opened->ok()) {
    errno = EMFILE;
    return nullptr;
  }
  context->sz = sizeof(verbs_context);
  context->query_port = QueryPort;
  context->context.device = device;
  context->context.cmd_fd = context->context.async_fd = -1;
  context->context.num_comp_vectors = 1;
  context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  FillTable(context->context.ops);
  const std::lock_guard<std::mutex> lock(process().mutex);
  context->opened->SetFaults(process().faults);
  process().devices.insert(context->opened.get());
  return &context.release()->context;
}

int ibv_close_device(ibv_context* opened) {
  Context& context = ContextOf(opened);
  {
    const std::lock_guard<std::mutex> lock(process().mutex);
    Add(process().closed, context.opened->statistics());
    process().devices.erase(context.opened.get());
  }
  delete &context;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  std::snprintf(attributes->fw_ver, sizeof(attributes->fw_ver), "fake");
  attributes->max_mr_size = uint64_t{1} << 40;
  attributes->page_size_cap = ~uint64_t{0} << 12;
  attributes->vendor_id = 0x1d0f;
  attributes->vendor_part_id = attributes->hw_ver = 0xefa2;
  attributes->max_qp = 1024;
  attributes->max_qp_wr = Device::kMaxRequests;
  attributes->max_sge = Device::kMaxParts;
  attributes->max_cq = 2048;
  attributes->max_cqe = Device::kMaxCompletions;
  attributes->max_mr = 1 << 20;
  attributes->max_pd = 1024;
  attributes->max_ah = 1 << 15;
  attributes->phys_port_cnt = 1;
  return 0;
}

int efadv_query_device(ibv_context*, efadv_device_attr* out, uint32_t size) {
  efadv_device_attr attributes = {};
  attributes.max_sq_wr = Device::kMaxRequests;
  attributes.max_rq_wr = Device::kMaxReceives;
  attributes.max_sq_sge = attributes.max_rq_sge = Device::kMaxParts;
  attributes.inline_buf_size = Device::kMaxInlineBytes;
  attributes.device_caps =
      kCapsRdmaRead | kCapsNotReadyRetry | kCapsSourceGid | kCapsRdmaWrite | kCapsUnsolicitedWrites;
  attributes.max_rdma_size = Device::kMaxWriteBytes;
  std::memset(static_cast<void*>(out), 0, size);
  std::memcpy(static_cast<void*>(out), &attributes, std::min<size_t>(size, sizeof(attributes)));
  return 0;
}

int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* out) {
  return QueryPort(context, port, reinterpret_cast<ibv_port_attr*>(out), offsetof(ibv_port_attr, link_layer));
}

int ibv_query_gid(ibv_context* context, uint8_t, int index, ibv_gid* gid) {
  if (index != 0) return -1;
  *gid = GidOf(DeviceOf(context).id());
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* domain = new ibv_pd();
  domain->context = context;
  return domain;
}

int ibv_dealloc_pd(ibv_pd* domain) {
  delete domain;
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length, uint64_t first, unsigned access) {
  auto* memory = new Memory();
  memory->context = domain->context;
  memory->pd = domain;
  memory->addr = address;
  memory->length = length;
  memory->first = first;
  memory->access = access;
  DeviceOf(domain->context).Register(*memory);
  return memory;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length, int access) {
  return ibv_reg_mr_iova2(domain, address, length, reinterpret_cast<uint64_t>(address), static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}

int ibv_dereg_mr(ibv_mr* memory) {
  DeviceOf(memory->context).Deregister(static_cast<Memory&>(*memory));
  delete static_cast<Memory*>(memory);
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  auto* route = new Route();
  route->context = domain->context;
  route->pd = domain;
  route->device = jax_fabric::fake_srd::DeviceOf(attributes->grh.dgid);
  DeviceOf(domain->context).AddRoute(*route);
  return route;
}

int ibv_destroy_ah(ibv_ah* route) {
  DeviceOf(route->context).RemoveRoute(static_cast<Route&>(*route));
  delete static_cast<Route*>(route);
  return 0;
}

int efadv_query_ah(ibv_ah* route, efadv_ah_attr* attributes, uint32_t) {
  attributes->comp_mask = 0;
  attributes->ahn = static_cast<Route*>(route)->number;
  return 0;
}

ibv_cq_ex* efadv_create_cq(ibv_context* context, ibv_cq_init_attr_ex* attributes, efadv_cq_init_attr*, uint32_t) {
  if (attributes->cqe > static_cast<uint32_t>(Device::kMaxCompletions)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* queue = new CompletionQueue();
  queue->context = context;
  queue->cq_context = attributes->cq_context;
  queue->device = &DeviceOf(context);
  queue->cqe = static_cast<int>(attributes->cqe);
  {
    const std::lock_guard<std::mutex> lock(process().mutex);
    if (process().faults.completion_entries > 0) queue->cqe = static_cast<int>(process().faults.completion_entries);
  }
  FillTable(*queue);
  return queue;
}

efadv_cq* efadv_cq_from_ibv_cq_ex(ibv_cq_ex* queue) { return &static_cast<CompletionQueue*>(queue)->advanced; }

int ibv_destroy_cq(ibv_cq* queue) {
  delete static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(queue));
  return 0;
}

ibv_qp* efadv_create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes, efadv_qp_init_attr* efa,
                           uint32_t size) {
  auto* pair = new QueuePair();
  pair->device = &DeviceOf(context);
  pair->send_queue = static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(attributes->send_cq));
  pair->receive_queue = static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(attributes->recv_cq));
  pair->depth = std::min(attributes->cap.max_send_wr, Device::kMaxRequests);
  pair->receive_depth = std::min(attributes->cap.max_recv_wr, Device::kMaxReceives);
  pair->unsolicited = size >= sizeof(*efa) && (efa->flags & kUnsolicitedWrites) != 0;
  ibv_qp& base = pair->qp_base;
  base.context = context;
  base.qp_context = attributes->qp_context;
  base.pd = attributes->pd;
  base.send_cq = attributes->send_cq;
  base.recv_cq = attributes->recv_cq;
  base.qp_type = IBV_QPT_DRIVER;
  base.state = IBV_QPS_RESET;
  FillTable(*pair);
  pair->device->AddQueuePair(*pair);
  return &base;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* pair) { return reinterpret_cast<ibv_qp_ex*>(pair); }

int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attributes, int mask) {
  auto& pair = static_cast<QueuePair&>(*reinterpret_cast<ibv_qp_ex*>(base));
  return pair.device->Modify(pair, *attributes, mask);
}

int ibv_destroy_qp(ibv_qp* base) {
  auto* pair = static_cast<QueuePair*>(reinterpret_cast<ibv_qp_ex*>(base));
  pair->device->RemoveQueuePair(*pair);
  delete pair;
  return 0;
}

int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }
int ibv_fork_init() { return 0; }
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

// Sleeping until something completes is not offered.
ibv_comp_channel* ibv_create_comp_channel(ibv_context*) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int ibv_destroy_comp_channel(ibv_comp_channel*) { return 0; }
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}

}  // extern "C"
