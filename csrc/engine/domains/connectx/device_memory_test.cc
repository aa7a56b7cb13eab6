// Memory of GPUs with the connectx domain, over the double of libibverbs: files stand for their dma-bufs, addresses
// that fault when the CPU touches them for the GPU's. Only a real NIC shows more (docs/connectx.md).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric {
namespace {

constexpr uint64_t kPage = 4096;

// Pages of a GPU that the CPU cannot touch.
class GpuMemory {
 public:
  explicit GpuMemory(uint64_t length) : length_(length), fd_(memfd_create("gpu", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(length)), 0);
    address_ = static_cast<std::byte*>(mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    seen_by_gpu_ = static_cast<std::byte*>(mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
  }
  ~GpuMemory() {
    munmap(address_, length_);
    munmap(seen_by_gpu_, length_);
  }

  std::byte* address() const { return address_; }
  std::byte* seen_by_gpu() const { return seen_by_gpu_; }

  // As nic::ExportCudaMemory: the pages around it, and where it is in them.
  Result<nic::DmaBuf> Export(const void* address, uint64_t length) const {
    const auto* at = static_cast<const std::byte*>(address);
    if (at < address_ || at + length > address_ + length_) {
      return MakeError(ErrorCode::kInvalidArgument, "{} is not memory of a CUDA device", address);
    }
    return nic::DmaBuf{UniqueFd(dup(fd_.get())), static_cast<uint64_t>(at - address_)};
  }

 private:
  const uint64_t length_;
  UniqueFd fd_;
  std::byte* address_ = nullptr;
  std::byte* seen_by_gpu_ = nullptr;
};

class ConnectXDeviceMemory : public testing::Test {
 protected:
  struct Side {
    GpuMemory memory{4 * kPage};
    std::unique_ptr<Domain> domain;
    MemoryRegion region;
    std::vector<Completion> completions;
  };

  void SetUp() override {
    ASSERT_TRUE(conformance::SetVerbsFaults({}));
    for (Side& side : sides_) {
      ConnectXDomainOptions options = conformance::ConnectXFabric::DoubleOptions();
      options.export_device_memory = [&side](const void* address, uint64_t length) {
        return side.memory.Export(address, length);
      };
      auto domain = CreateConnectXDomain(options);
      ASSERT_TRUE(domain.has_value()) << domain.error().message;
      side.domain = *std::move(domain);
      // Neither end at a page's.
      const auto region =
          side.domain->RegisterMemory(side.memory.address() + kBegin, kLength, MemoryKind::kCuda, Access::kRemoteWrite);
      ASSERT_TRUE(region.has_value()) << region.error().message;
      side.region = *region;
    }
    auto peer = sides_[0].domain->AddPeer(sides_[1].domain->address());
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    peer_ = *peer;
    ASSERT_TRUE(Until([&] { return sides_[0].domain->peer_state(peer_) == PeerState::kReady; }));
  }

  bool Until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > end) return false;
      for (Side& side : sides_) {
        std::array<Completion, 16> found;
        const size_t count = side.domain->Poll(found);
        side.completions.insert(side.completions.end(), found.begin(), found.begin() + static_cast<ptrdiff_t>(count));
      }
    }
    return true;
  }

  WriteRequest WriteOf(uint64_t offset, uint64_t length) const {
    WriteRequest write;
    write.peer = peer_;
    write.source = sides_[0].memory.address() + kBegin + offset;
    write.local_key = sides_[0].region.local_key;
    write.length = length;
    write.remote_address = sides_[1].region.remote_address + offset;
    write.remote_key = sides_[1].region.remote_key;
    write.immediate = 7;
    return write;
  }

  static constexpr uint64_t kBegin = 100;
  static constexpr uint64_t kLength = 3 * kPage;
  std::array<Side, 2> sides_;
  PeerId peer_ = 0;
};

TEST_F(ConnectXDeviceMemory, IsWrittenFromAndToByTheNicAlone) {
  for (uint64_t i = 0; i < 4 * kPage; ++i) sides_[0].memory.seen_by_gpu()[i] = static_cast<std::byte>(i * 7 + i / 251);
  // So small that it would be inline from host memory; and over pages.
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{8, 8}, {5, 2 * kPage + 11}}) {
    const size_t before = sides_[1].completions.size();
    ASSERT_EQ(sides_[0].domain->PostWrite(WriteOf(offset, length)), PostResult::kPosted);
    ASSERT_TRUE(Until([&] { return sides_[1].completions.size() > before; }));
    EXPECT_EQ(sides_[1].completions.back().immediate, 7u);
    const uint64_t first = kBegin + offset;
    const std::byte* there = sides_[1].memory.seen_by_gpu();
    EXPECT_EQ(std::memcmp(there + first, sides_[0].memory.seen_by_gpu() + first, length), 0);
    EXPECT_EQ(there[first + length], std::byte{0});
  }
}

// All that the CPU would do with it: writes to oneself, messages.
TEST_F(ConnectXDeviceMemory, IsNotTouchedByTheCpu) {
  Domain& domain = *sides_[0].domain;
  const auto self = domain.AddPeer(domain.address());
  ASSERT_TRUE(self.has_value());
  ASSERT_TRUE(Until([&] { return domain.peer_state(*self) == PeerState::kReady; }));
  WriteRequest write = WriteOf(0, 64);
  write.peer = *self;
  write.remote_address = sides_[0].region.remote_address + 1024;
  write.remote_key = sides_[0].region.remote_key;
  EXPECT_EQ(domain.PostWrite(write), PostResult::kRejected);
  EXPECT_NE(domain.last_error().find("copied by kernels"), std::string::npos) << domain.last_error();
  SendRequest send;
  send.peer = peer_;
  send.source = sides_[0].memory.address() + kBegin;
  send.local_key = sides_[0].region.local_key;
  send.length = 64;
  EXPECT_EQ(domain.PostSend(send), PostResult::kRejected);
  EXPECT_NE(domain.last_error().find("host memory"), std::string::npos) << domain.last_error();
  ReceiveRequest receive;
  receive.target = sides_[0].memory.address() + kBegin;
  receive.local_key = sides_[0].region.local_key;
  receive.length = 64;
  EXPECT_EQ(domain.PostReceive(receive), PostResult::kRejected);
  EXPECT_NE(domain.last_error().find("host memory"), std::string::npos) << domain.last_error();
}

TEST_F(ConnectXDeviceMemory, IsRefusedWithTheReason) {
  std::byte here{};
  const auto region = sides_[0].domain->RegisterMemory(&here, 1, MemoryKind::kCuda, Access::kLocalOnly);
  ASSERT_FALSE(region.has_value());
  EXPECT_EQ(region.error().code, ErrorCode::kUnavailable);
  for (const char* part : {"is not memory of a CUDA device", "nvidia-peermem", "double"}) {
    EXPECT_NE(region.error().message.find(part), std::string::npos) << region.error().message;
  }
}

// Without a GPU, too, the real way says what is missing.
TEST(ExportCudaMemory, SaysWhatIsMissing) {
  const std::vector<std::byte> memory(64);
  const auto exported = nic::ExportCudaMemory(memory.data(), memory.size());
  ASSERT_FALSE(exported.has_value());
  const std::string& message = exported.error().message;
  EXPECT_TRUE(message.find("needs NVIDIA's driver") != std::string::npos ||
              message.find("is not memory of a CUDA device") != std::string::npos)
      << message;
}

}  // namespace
}  // namespace jax_fabric
