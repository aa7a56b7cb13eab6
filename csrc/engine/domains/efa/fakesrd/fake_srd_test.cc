// The fake device by itself, through the functions that libfabric calls: what it promises, and what it refuses.
#include "csrc/engine/domains/efa/fakesrd/fake_srd.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "csrc/engine/domains/efa/fakesrd/efa_abi.h"
#include "csrc/engine/domains/efa/fakesrd/status.h"

extern "C" {
ibv_cq_ex* efadv_create_cq(ibv_context*, ibv_cq_init_attr_ex*, efadv_cq_init_attr*, uint32_t);
ibv_qp* efadv_create_qp_ex(ibv_context*, ibv_qp_init_attr_ex*, efadv_qp_init_attr*, uint32_t);
efadv_cq* efadv_cq_from_ibv_cq_ex(ibv_cq_ex*);
}

namespace jax_fabric::fake_srd {
namespace {

constexpr uint32_t kKey = 77;
constexpr size_t kBytes = 64 * 1024;

struct Seen {
  uint64_t id;
  Status status;
  ibv_wc_opcode opcode;
  uint32_t immediate;
};

// One device with one queue pair, and memory that others may write to.
struct Side {
  explicit Side(uint32_t entries = 1024, bool unsolicited = false) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (count == 1) context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    domain = ibv_alloc_pd(context);
    ibv_cq_init_attr_ex queue_attributes = {};
    queue_attributes.cqe = entries;
    queue = efadv_create_cq(context, &queue_attributes, nullptr, 0);
    ibv_qp_init_attr_ex attributes = {};
    attributes.send_cq = attributes.recv_cq = ibv_cq_ex_to_cq(queue);
    attributes.pd = domain;
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 256;
    efadv_qp_init_attr efa = {};
    efa.flags = unsolicited ? kUnsolicitedWrites : 0;
    pair = efadv_create_qp_ex(context, &attributes, &efa, sizeof(efa));
    ibv_qp_attr state = {};
    state.qkey = kKey;
    state.rnr_retry = 1;
    for (const ibv_qp_state next : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      state.qp_state = next;
      EXPECT_EQ(ibv_modify_qp(pair, &state, IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_RNR_RETRY), 0);
    }
    memory = ibv_reg_mr_iova2(domain, bytes.data(), kBytes, reinterpret_cast<uint64_t>(bytes.data()),
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  }
  Side(const Side&) = delete;
  ~Side() {
    for (ibv_ah* route : routes) ibv_destroy_ah(route);
    if (pair != nullptr) ibv_destroy_qp(pair);
    ibv_destroy_cq(ibv_cq_ex_to_cq(queue));
    ibv_dereg_mr(memory);
    ibv_dealloc_pd(domain);
    ibv_close_device(context);
  }

  ibv_ah* RouteTo(const Side& other) {
    ibv_ah_attr attributes = {};
    EXPECT_EQ(ibv_query_gid(other.context, 1, 0, &attributes.grh.dgid), 0);
    routes.push_back(ibv_create_ah(domain, &attributes));
    return routes.back();
  }

  // Without `key` that of the other side's memory.
  int Write(ibv_ah* route, const Side& to, uint64_t id, uint64_t offset, uint32_t length, uint32_t key = 0) {
    ibv_qp_ex* ex = ibv_qp_to_qp_ex(pair);
    ibv_wr_start(ex);
    ex->wr_id = id;
    ibv_wr_rdma_write_imm(ex, key != 0 ? key : to.memory->rkey, reinterpret_cast<uint64_t>(to.bytes.data()) + offset,
                          static_cast<uint32_t>(id));
    ibv_wr_set_ud_addr(ex, route, to.pair->qp_num, kKey);
    ibv_wr_set_sge(ex, memory->lkey, reinterpret_cast<uint64_t>(bytes.data()) + offset, length);
    return ibv_wr_complete(ex);
  }

  void PostReceives(int count) {
    for (int i = 0; i < count; ++i) {
      ibv_sge part = {reinterpret_cast<uint64_t>(bytes.data()), 0, memory->lkey};
      ibv_recv_wr work = {}, *bad = nullptr;
      work.wr_id = 1000 + static_cast<uint64_t>(i);
      work.sg_list = &part;
      work.num_sge = 1;
      ASSERT_EQ(ibv_post_recv(pair, &work, &bad), 0);
    }
  }

  int Poll() {
    ibv_poll_cq_attr attributes = {};
    int result = ibv_start_poll(queue, &attributes);
    if (result != 0) return result;
    for (; result == 0; result = ibv_next_poll(queue)) {
      seen.push_back({queue->wr_id, static_cast<Status>(ibv_wc_read_vendor_err(queue)), ibv_wc_read_opcode(queue),
                      ibv_wc_read_imm_data(queue)});
    }
    ibv_end_poll(queue);
    return 0;
  }
  // Polls until there are so many; false: not within 10 s.
  bool Await(size_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (seen.size() < count && std::chrono::steady_clock::now() < end) Poll();
    return seen.size() == count;
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(kBytes);
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_cq_ex* queue = nullptr;
  ibv_qp* pair = nullptr;
  ibv_mr* memory = nullptr;
  std::vector<ibv_ah*> routes;
  std::vector<Seen> seen;
};

class FakeSrd : public testing::Test {
 protected:
  void SetUp() override { SetFaults({}); }
};

TEST_F(FakeSrd, WritesOvertakeEachOtherAndArriveOnce) {
  SetFaults({.start_delay_us = 20'000});
  Side writer, target(1024, true);
  ibv_ah* route = writer.RouteTo(target);
  target.RouteTo(writer);
  for (size_t i = 0; i < kBytes; ++i) writer.bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  const uint64_t before = ReadStatistics().overtaken;
  constexpr uint32_t kWrites = 64, kLength = kBytes / kWrites;
  for (uint32_t i = 0; i < kWrites; ++i) ASSERT_EQ(writer.Write(route, target, i, i * kLength, kLength), 0);
  ASSERT_TRUE(writer.Await(kWrites));
  ASSERT_TRUE(target.Await(kWrites));
  EXPECT_GT(ReadStatistics().overtaken, before);
  EXPECT_FALSE(std::is_sorted(target.seen.begin(), target.seen.end(),
                              [](const Seen& a, const Seen& b) { return a.immediate < b.immediate; }));
  std::vector<int> times(kWrites);
  for (const Seen& each : target.seen) ++times.at(each.immediate);
  EXPECT_EQ(std::count(times.begin(), times.end(), 1), kWrites);
  EXPECT_EQ(writer.bytes, target.bytes);
}

TEST_F(FakeSrd, InAWindowOfOneNothingOvertakes) {
  SetFaults({.window = 1, .start_delay_us = 0});
  Side writer, target(1024, true);
  ibv_ah* route = writer.RouteTo(target);
  target.RouteTo(writer);
  for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(writer.Write(route, target, i, 0, 64), 0);
  ASSERT_TRUE(target.Await(64));
  EXPECT_TRUE(std::is_sorted(target.seen.begin(), target.seen.end(),
                             [](const Seen& a, const Seen& b) { return a.immediate < b.immediate; }));
}

TEST_F(FakeSrd, RefusalsHaveTheStatusOfEfa) {
  Side writer, target(1024, true), stranger;
  ibv_ah* route = writer.RouteTo(target);
  ASSERT_EQ(writer.Write(route, target, 1, 0, 64), 0);
  ASSERT_TRUE(writer.Await(1));
  EXPECT_EQ(writer.seen[0].status, Status::kUnknownPeer);  // the target has no route back
  target.RouteTo(writer);
  ASSERT_EQ(writer.Write(route, target, 2, 0, 64, target.memory->rkey + 1), 0);
  ASSERT_TRUE(writer.Await(2));
  EXPECT_EQ(writer.seen[1].status, Status::kBadRemoteAddress);
  ASSERT_EQ(writer.Write(route, target, 3, kBytes - 32, 32), 0);
  ASSERT_TRUE(writer.Await(3));
  EXPECT_EQ(writer.seen[2].status, Status::kOk);
  writer.memory->lkey += 1;
  ASSERT_EQ(writer.Write(route, target, 4, 0, 64), 0);
  writer.memory->lkey -= 1;
  ASSERT_TRUE(writer.Await(4));
  EXPECT_EQ(writer.seen[3].status, Status::kBadLocalKey);
  // There is no such queue pair at that device.
  ASSERT_EQ(writer.Write(writer.RouteTo(stranger), target, 5, 0, 64), 0);
  ASSERT_TRUE(writer.Await(5));
  EXPECT_EQ(writer.seen[4].status, Status::kBadQueuePair);
  EXPECT_EQ(target.bytes[0], std::byte{0});
}

TEST_F(FakeSrd, ADeviceThatIsGoneIsUnresponsive) {
  Side writer;
  ibv_ah* route = nullptr;
  {
    Side target(1024, true);
    route = writer.RouteTo(target);
    target.RouteTo(writer);
    ASSERT_EQ(writer.Write(route, target, 1, 0, 64), 0);
    ASSERT_TRUE(writer.Await(1));
    SetFaults({.hold = 1});
    ASSERT_EQ(writer.Write(route, target, 2, 0, 64), 0);
  }
  SetFaults({});
  ASSERT_TRUE(writer.Await(2));
  EXPECT_EQ(writer.seen[1].status, Status::kUnresponsive);
}

TEST_F(FakeSrd, AReceiverThatIsNotReadyIsTriedAgainAndThenRefused) {
  Side writer, target;  // immediates take receives
  ibv_ah* route = writer.RouteTo(target);
  target.RouteTo(writer);
  ASSERT_EQ(writer.Write(route, target, 1, 0, 64), 0);
  ASSERT_TRUE(writer.Await(1));
  EXPECT_EQ(writer.seen[0].status, Status::kReceiverNotReady);
  target.PostReceives(1);
  ASSERT_EQ(writer.Write(route, target, 2, 0, 64), 0);
  ASSERT_TRUE(writer.Await(2));
  EXPECT_EQ(writer.seen[1].status, Status::kOk);
  ASSERT_TRUE(target.Await(1));
  EXPECT_EQ(target.seen[0].id, 1000u);
  // By a draw, although there is one.
  SetFaults({.receiver_not_ready = 1});
  const uint64_t before = ReadStatistics().not_ready;
  target.PostReceives(1);
  ASSERT_EQ(writer.Write(route, target, 3, 0, 64), 0);
  ASSERT_TRUE(writer.Await(3));
  EXPECT_EQ(writer.seen[2].status, Status::kOk);
  EXPECT_EQ(ReadStatistics().not_ready, before + 1);
}

TEST_F(FakeSrd, AFullSendQueueSaysNoMemory) {
  SetFaults({.start_delay_us = 1'000'000});
  Side writer, target(1024, true);
  ibv_ah* route = writer.RouteTo(target);
  target.RouteTo(writer);
  int posted = 0;
  while (posted < 1000 && writer.Write(route, target, 1, 0, 8) == 0) ++posted;
  EXPECT_GE(posted, 256);
  EXPECT_LT(posted, 1000);
  SetFaults({.send_queue_full = 1});
  EXPECT_EQ(writer.Write(route, target, 1, 0, 8), ENOMEM);
}

TEST_F(FakeSrd, AnOverrunQueueIsAnError) {
  Side writer, target(16, true);
  ibv_ah* route = writer.RouteTo(target);
  target.RouteTo(writer);
  for (uint32_t i = 0; i < 32; ++i) ASSERT_EQ(writer.Write(route, target, i, 0, 64), 0);
  ASSERT_TRUE(writer.Await(32));
  EXPECT_EQ(ReadStatistics().overruns, 16u);
  ASSERT_TRUE(target.Await(16));
  EXPECT_EQ(target.Poll(), EINVAL);
}

}  // namespace
}  // namespace jax_fabric::fake_srd
