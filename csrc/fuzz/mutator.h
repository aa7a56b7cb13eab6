#ifndef JAX_FABRIC_FUZZ_MUTATOR_H_
#define JAX_FABRIC_FUZZ_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace jax_fabric::fuzz {

using Input = std::vector<uint8_t>;

// Inputs for a fuzz target where there is no libFuzzer: parts of the corpus, changed. The seed says all.
class Mutator {
 public:
  static constexpr size_t kMaxBytes = 1024;

  Mutator(uint64_t seed, std::vector<Input> corpus);

  // Valid until the next call.
  const Input& Next();

 private:
  void Change();
  size_t Below(size_t end) { return end == 0 ? 0 : random_() % end; }

  std::mt19937_64 random_;
  std::vector<Input> corpus_;  // never empty
  Input input_;
};

}  // namespace jax_fabric::fuzz

#endif  // JAX_FABRIC_FUZZ_MUTATOR_H_
