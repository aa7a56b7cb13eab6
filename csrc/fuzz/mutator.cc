#include "csrc/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace jax_fabric::fuzz {
namespace {

// At the edges of what fields of 1 to 8 bytes hold.
constexpr std::array<uint64_t, 12> kEdges = {
    0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};

}  // namespace

Mutator::Mutator(uint64_t seed, std::vector<Input> corpus) : random_(seed), corpus_(std::move(corpus)) {
  corpus_.emplace_back();
}

const Input& Mutator::Next() {
  input_ = corpus_[Below(corpus_.size())];
  for (size_t changes = Below(5); changes > 0; --changes) Change();
  if (input_.size() > kMaxBytes) input_.resize(kMaxBytes);
  return input_;
}

void Mutator::Change() {
  const size_t at = Below(input_.size() + 1);
  const auto here = input_.begin() + static_cast<ptrdiff_t>(at);
  const size_t left = input_.size() - at;
  switch (Below(7)) {
    case 0:  // a bit
      if (left > 0) *here ^= static_cast<uint8_t>(1u << Below(8));
      break;
    case 1:  // a byte
      if (left > 0) *here = static_cast<uint8_t>(random_());
      break;
    case 2: {  // a number
      const uint64_t value = kEdges[Below(kEdges.size())] + Below(3) - 1;
      const size_t bytes = size_t{1} << Below(4);
      if (left >= bytes) std::memcpy(input_.data() + at, &value, bytes);
      break;
    }
    case 3:  // something is gone
      input_.erase(here, here + static_cast<ptrdiff_t>(Below(std::min<size_t>(left, 64) + 1)));
      break;
    case 4: {  // something new
      Input bytes(Below(33));
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
      input_.insert(here, bytes.begin(), bytes.end());
      break;
    }
    case 5: {  // a piece of another one
      const Input& other = corpus_[Below(corpus_.size())];
      const size_t begin = Below(other.size() + 1);
      const size_t length = Below(other.size() - begin + 1);
      input_.insert(here, other.begin() + static_cast<ptrdiff_t>(begin),
                    other.begin() + static_cast<ptrdiff_t>(begin + length));
      break;
    }
    case 6: {  // a piece of its own, again
      const Input copy(here, here + static_cast<ptrdiff_t>(Below(left + 1)));
      input_.insert(input_.end(), copy.begin(), copy.end());
      break;
    }
  }
}

}  // namespace jax_fabric::fuzz
