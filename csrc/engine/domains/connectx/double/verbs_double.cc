// The symbols of libibverbs that the domain opens, and those of verbs_double.h.
#include "csrc/engine/domains/connectx/double/verbs_double.h"

#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "csrc/engine/domains/connectx/double/device.h"
#include "csrc/engine/domains/connectx/double/gids.h"
#include "csrc/engine/domains/connectx/double/gpu_copies.h"

namespace jax_fabric::verbs_double {
namespace {

// The first one is not to be used: its port is down.
constexpr std::array<DeviceModel, 3> kModels = {DeviceModel{"double_down", IBV_PORT_DOWN, IBV_MTU_4096},
                                                DeviceModel{"double0", IBV_PORT_ACTIVE, IBV_MTU_4096},
                                                DeviceModel{"double1", IBV_PORT_ACTIVE, IBV_MTU_1024}};

struct ListedDevice : ibv_device {
  const DeviceModel* model = nullptr;
};

struct Context : ibv_context {
  std::unique_ptr<Device> opened;
};

Device& DeviceOfContext(ibv_context* context) { return *static_cast<Context*>(context)->opened; }

std::mutex faults_mutex;
Faults faults;
std::atomic<uint64_t> leaks{0};

int PollQueue(ibv_cq* queue, int count, ibv_wc* work) {
  return DeviceOfContext(queue->context).Poll(static_cast<CompletionQueue&>(*queue), count, work);
}

int ArmQueue(ibv_cq* queue, int) { return DeviceOfContext(queue->context).Arm(static_cast<CompletionQueue&>(*queue)); }

int PostSend(ibv_qp* pair, ibv_send_wr* work, ibv_send_wr** bad) {
  return DeviceOfContext(pair->context).PostSend(static_cast<QueuePair&>(*pair), work, bad);
}

int PostReceive(ibv_qp* pair, ibv_recv_wr* work, ibv_recv_wr** bad) {
  auto& to = static_cast<QueuePair&>(*pair);
  return DeviceOfContext(pair->context).PostReceive(to.receives, to.receive_depth, work, bad);
}

int PostSharedReceive(ibv_srq* queue, ibv_recv_wr* work, ibv_recv_wr** bad) {
  auto& to = static_cast<ReceiveQueue&>(*queue);
  return DeviceOfContext(queue->context).PostReceive(to.receives, to.capacity, work, bad);
}

ibv_mr* Register(ibv_pd* domain, void* address, size_t length, unsigned access, std::byte* mapped = nullptr) {
  auto memory = std::make_unique<Memory>();
  memory->on_gpu = mapped == nullptr && IsGpuMemory(address);
  memory->bytes = mapped != nullptr ? mapped : static_cast<std::byte*>(address);
  memory->mapped = mapped != nullptr;
  memory->context = domain->context;
  memory->pd = domain;
  memory->addr = address;
  memory->length = length;
  memory->access = access;
  if (const int error = DeviceOfContext(domain->context).Register(*memory); error != 0) {
    errno = error;
    return nullptr;
  }
  return memory.release();
}

}  // namespace
}  // namespace jax_fabric::verbs_double

using namespace jax_fabric::verbs_double;  // NOLINT: the symbols below are C's

#undef ibv_query_port
#undef ibv_reg_mr

extern "C" {

void jf_verbs_double_set_faults(const Faults* wanted) {
  const std::lock_guard<std::mutex> lock(faults_mutex);
  faults = *wanted;
}

uint64_t jf_verbs_double_leaks() { return leaks.load(); }

ibv_device** ibv_get_device_list(int* count) {
  auto** list = new ibv_device*[kModels.size() + 1]();
  for (size_t i = 0; i < kModels.size(); ++i) {
    auto* listed = new ListedDevice();
    listed->model = &kModels[i];
    listed->node_type = IBV_NODE_CA;
    std::snprintf(listed->name, sizeof(listed->name), "%s", kModels[i].name);
    list[i] = listed;
  }
  *count = static_cast<int>(kModels.size());
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  for (size_t i = 0; i < kModels.size(); ++i) delete static_cast<ListedDevice*>(list[i]);
  delete[] list;
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) return nullptr;
  Faults drawn;
  {
    const std::lock_guard<std::mutex> lock(faults_mutex);
    drawn = faults;
  }
  auto context = std::make_unique<Context>();
  context->opened = std::make_unique<Device>(*static_cast<ListedDevice*>(device)->model, id, drawn);
  if (!context->opened->ok()) {
    errno = EMFILE;
    return nullptr;
  }
  context->ops.poll_cq = PollQueue;
  context->ops.req_notify_cq = ArmQueue;
  context->ops.post_send = PostSend;
  context->ops.post_recv = PostReceive;
  context->ops.post_srq_recv = PostSharedReceive;
  return context.release();
}

int ibv_close_device(ibv_context* context) {
  leaks += DeviceOfContext(context).objects();
  delete static_cast<Context*>(context);
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->phys_port_cnt = 1;
  attributes->max_qp_wr = Device::kMaxWork;
  attributes->max_srq_wr = Device::kMaxWork;
  attributes->max_cqe = 4 * Device::kMaxWork;
  attributes->max_mr_size = ~uint64_t{0};
  return 0;
}

int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* out) {
  if (port != 1) return EINVAL;
  auto* attributes = reinterpret_cast<ibv_port_attr*>(out);
  *attributes = {};
  attributes->state = DeviceOfContext(context).model().state;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->active_mtu = DeviceOfContext(context).model().mtu;
  attributes->gid_tbl_len = kGids;
  attributes->max_msg_sz = Device::kMaxMessage;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry, uint32_t, size_t) {
  if (port != 1 || index >= kGids) return EINVAL;
  if (index == kZeroGid) return ENODATA;  // as the kernel says to an empty one
  *entry = GidEntry(DeviceOfContext(context).id(), static_cast<int>(index));
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  DeviceOfContext(context).CountObject(1);
  auto* domain = new ibv_pd();
  domain->context = context;
  return domain;
}

int ibv_dealloc_pd(ibv_pd* domain) {
  DeviceOfContext(domain->context).CountObject(-1);
  delete domain;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length, int access) {
  return Register(domain, address, length, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, size_t length, uint64_t, unsigned access) {
  if ((access & IBV_ACCESS_RELAXED_ORDERING) != 0 &&
      DeviceOfContext(domain->context).faults().refuse_relaxed_ordering) {
    errno = EINVAL;
    return nullptr;
  }
  return Register(domain, address, length, access);
}

// Any file that can be mapped stands for a dma-buf; a real one of a GPU, which cannot be, for the memory there.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset, size_t length, uint64_t address, int fd, int access) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t before = offset % page;
  void* mapped =
      mmap(nullptr, before + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - before));
  if (mapped == MAP_FAILED) {
    if (!IsGpuMemory(reinterpret_cast<void*>(address))) return nullptr;
    return Register(domain, reinterpret_cast<void*>(address), length, static_cast<unsigned>(access));
  }
  ibv_mr* memory = Register(domain, reinterpret_cast<void*>(address), length, static_cast<unsigned>(access),
                            static_cast<std::byte*>(mapped) + before);
  if (memory == nullptr) munmap(mapped, before + length);
  return memory;
}

int ibv_dereg_mr(ibv_mr* handle) {
  auto* memory = static_cast<Memory*>(handle);
  DeviceOfContext(memory->context).Deregister(*memory);
  if (memory->mapped) {
    const uint64_t before = reinterpret_cast<uint64_t>(memory->bytes) % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    munmap(memory->bytes - before, before + memory->length);
  }
  delete memory;
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto channel = std::make_unique<CompletionChannel>();
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC);
  if (channel->fd < 0) return nullptr;
  DeviceOfContext(context).CountObject(1);
  return channel.release();
}

int ibv_destroy_comp_channel(ibv_comp_channel* handle) {
  if (handle->refcnt > 0) return EBUSY;
  DeviceOfContext(handle->context).CountObject(-1);
  close(handle->fd);
  delete static_cast<CompletionChannel*>(handle);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* handle, ibv_cq** queue, void** context) {
  uint64_t events = 0;
  if (read(handle->fd, &events, sizeof(events)) != sizeof(events)) return -1;
  *queue = static_cast<CompletionChannel*>(handle)->queue;
  *context = (*queue)->cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq*, unsigned) {}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*, ibv_comp_channel* channel, int) {
  auto* queue = new CompletionQueue();
  queue->context = context;
  queue->channel = channel;
  queue->cqe = entries;
  if (channel != nullptr) {
    ++channel->refcnt;
    static_cast<CompletionChannel*>(channel)->queue = queue;
  }
  DeviceOfContext(context).AddCompletionQueue(*queue);
  return queue;
}

int ibv_destroy_cq(ibv_cq* queue) {
  DeviceOfContext(queue->context).RemoveCompletionQueue(static_cast<CompletionQueue&>(*queue));
  if (queue->channel != nullptr) --queue->channel->refcnt;
  delete static_cast<CompletionQueue*>(queue);
  return 0;
}

ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* attributes) {
  DeviceOfContext(domain->context).CountObject(1);
  auto* queue = new ReceiveQueue();
  queue->context = domain->context;
  queue->pd = domain;
  queue->capacity = attributes->attr.max_wr;
  return queue;
}

int ibv_destroy_srq(ibv_srq* queue) {
  DeviceOfContext(queue->context).CountObject(-1);
  delete static_cast<ReceiveQueue*>(queue);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  Device& device = DeviceOfContext(domain->context);
  const ibv_qp_cap& wanted = attributes->cap;
  if (wanted.max_send_wr > Device::kMaxWork || wanted.max_inline_data > Device::kMaxInline ||
      (wanted.max_inline_data > 0 && device.faults().refuse_inline)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* pair = new QueuePair();
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = attributes->send_cq;
  pair->recv_cq = attributes->recv_cq;
  pair->srq = attributes->srq;
  pair->qp_type = attributes->qp_type;
  pair->state = IBV_QPS_RESET;
  pair->depth = wanted.max_send_wr;
  pair->receive_depth = wanted.max_recv_wr;
  pair->signal_all = attributes->sq_sig_all != 0;
  device.AddQueuePair(*pair);
  return pair;
}

int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  return DeviceOfContext(pair->context).Modify(static_cast<QueuePair&>(*pair), *attributes, mask);
}

int ibv_destroy_qp(ibv_qp* pair) {
  DeviceOfContext(pair->context).RemoveQueuePair(static_cast<QueuePair&>(*pair));
  delete static_cast<QueuePair*>(pair);
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  if (!attributes->is_global || attributes->grh.sgid_index == kZeroGid) {
    errno = EINVAL;
    return nullptr;
  }
  DeviceOfContext(domain->context).CountObject(1);
  auto* route = new Route();
  route->context = domain->context;
  route->pd = domain;
  route->device = DeviceOf(attributes->grh.dgid);
  return route;
}

int ibv_destroy_ah(ibv_ah* route) { return DeviceOfContext(route->context).DestroyRoute(static_cast<Route*>(route)); }

const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "RNR retry counter exceeded";
    case IBV_WC_WR_FLUSH_ERR:
      return "Work Request Flushed Error";
    default:
      return "unknown";
  }
}

const char* ibv_port_state_str(ibv_port_state state) { return state == IBV_PORT_ACTIVE ? "PORT_ACTIVE" : "PORT_DOWN"; }

}  // extern "C"
