// The random bits of dropout. Philox4x32-10 (Salmon et al. 2011), a pure function of position, so that
// backward makes the same bits again and nothing of size seq_q * seq_k is stored.
//
//   counter = (key / 4, query, batch * heads + head, low half of offset), key = (seed low, seed high ^ offset
//   high) The word key % 4 of the result belongs to (batch, head, query, key). It is kept if word >=
//   dropout_p * 2^32.
// Positions count from the start of their sequence; with packed sequences `batch` is the sequence.
#pragma once

#include <cstdint>

namespace tileformer {

struct PhiloxWords {
  std::uint32_t word[4];
};

constexpr PhiloxWords philox4x32(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                                 std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t n0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = std::uint32_t(p1);
    c3 = std::uint32_t(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Words below the threshold are dropped.
constexpr std::uint32_t dropout_threshold(float p) {
  return p <= 0 ? 0u : p >= 1 ? 0xFFFFFFFFu : std::uint32_t(double(p) * 4294967296.0);
}

}  // namespace tileformer
