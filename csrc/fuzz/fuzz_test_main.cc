// A fuzz target (LLVMFuzzerTestOneInput) as a test: all of its corpus, then seeded mutations of it. scripts/fuzz runs
// the same target under libFuzzer, which sees what the code does with an input and so gets further.
//
//   target_fuzz [--corpus=FOLDER] [--runs=N] [--seed=N]
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/fuzz/mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Of a sanitizer, where there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace jax_fabric::fuzz {
namespace {

// JAX_FABRIC_SOAK=1 runs so many times as much.
constexpr uint64_t kSoakFactor = 100;

std::string corpus_folder;  // NOLINT: of the program's arguments
uint64_t runs = 10'000;
uint64_t seed = 1;
const Input* current = nullptr;  // what the target has at the moment

// Async-signal-safe: the target may have died in malloc.
void SayInput() {
  if (current == nullptr) return;
  constexpr std::string_view kBefore = "\nfuzz: died with this input (hex): ";
  [[maybe_unused]] ssize_t ignored = write(STDERR_FILENO, kBefore.data(), kBefore.size());
  for (const uint8_t byte : *current) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const char digits[2] = {kDigits[byte >> 4], kDigits[byte & 15]};
    ignored = write(STDERR_FILENO, digits, sizeof(digits));
  }
  ignored = write(STDERR_FILENO, "\n", 1);
  current = nullptr;
}

void OnSignal(int number) {
  SayInput();
  signal(number, SIG_DFL);
  raise(number);
}

void Feed(const Input& input) {
  current = &input;
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
  current = nullptr;
}

std::vector<Input> ReadCorpus() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(corpus_folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // the seed shall mean the same everywhere
  std::vector<Input> corpus;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return corpus;
}

TEST(Fuzz, Corpus) {
  const std::vector<Input> corpus = ReadCorpus();
  ASSERT_FALSE(corpus.empty()) << corpus_folder;
  for (const Input& input : corpus) Feed(input);
}

TEST(Fuzz, SeededMutations) {
  Mutator mutator(seed, ReadCorpus());
  for (uint64_t run = 0; run < runs; ++run) Feed(mutator.Next());
  RecordProperty("runs", std::to_string(runs));
}

bool Take(std::string_view argument, std::string_view name, std::string& value) {
  if (!argument.starts_with(name)) return false;
  value = argument.substr(name.size());
  return true;
}

bool Take(std::string_view argument, std::string_view name, uint64_t& value) {
  std::string text;
  return Take(argument, name, text) &&
         std::from_chars(text.data(), text.data() + text.size(), value).ptr == text.data() + text.size();
}

}  // namespace
}  // namespace jax_fabric::fuzz

int main(int argc, char** argv) {
  using namespace jax_fabric::fuzz;  // NOLINT
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (Take(argv[i], "--corpus=", corpus_folder) || Take(argv[i], "--runs=", runs) || Take(argv[i], "--seed=", seed)) {
      continue;
    }
    fprintf(stderr, "unknown argument %s\n", argv[i]);
    return 2;
  }
  const auto config = jax_fabric::LoadConfig();
  if (!config.has_value()) {
    fprintf(stderr, "%s\n", config.error().message.c_str());
    return 2;
  }
  if (config->soak) runs *= kSoakFactor;
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(&SayInput);
  } else {
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, &OnSignal);
  }
  return RUN_ALL_TESTS();
}
