// Runs random problems for some time.
//
//   ..._fuzz [--seconds N] [--cases N] [--seed N]
//
// Every problem has a seed of its own, printed when it fails: --cases 1 --seed N runs it again.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace tileformer::test {

inline int fuzz(std::string (*failure_of)(std::uint64_t seed), double seconds, std::uint64_t cases,
                std::uint64_t seed) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::uint64_t done = 0, failed = 0;
  for (; done < cases && elapsed() < seconds; ++done, ++seed) {
    const std::string failure = failure_of(seed);
    if (failure.empty()) continue;
    ++failed;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), failure.c_str());
    std::fflush(stdout);
  }
  std::printf("%llu cases, %llu failed\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(failed));
  return failed == 0 ? 0 : 1;
}

// main of a fuzzer: failure_of runs the problem of a seed, and returns what is wrong with it or nothing.
inline int fuzz_main(int argc, char** argv, std::string (*failure_of)(std::uint64_t seed)) {
  double seconds = 1e9;
  std::uint64_t cases = ~std::uint64_t{0}, seed = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--seconds") {
      seconds = std::strtod(value, nullptr);
    } else if (option == "--cases") {
      cases = std::strtoull(value, nullptr, 10);
    } else if (option == "--seed") {
      seed = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: %s [--seconds N] [--cases N] [--seed N]\n", argv[0]);
      return 2;
    }
  }
  return fuzz(failure_of, seconds, cases, seed);
}

}  // namespace tileformer::test
