// Rows of codes for row_run.h, multiplied in whole numbers: a token's row is rounded to 16 bits of its
// largest element (whole_rows.h), products and their sums are exact. (One byte for it would be faster where
// there is an instruction for bytes, and leave 4 to 5 % of error.) Included by kernels only.
#pragma once

#include "ops/moe/common/row_run.h"
#include "tile/nibbles.h"
#include "tile/whole_rows.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kShortStep = 2 * kVecLanes;  // 16-bit numbers of a vector

// int8 with a scale for each row.
struct ByteRows {
  using Element = std::int8_t;
  static constexpr int kElements = kLineBytes > kShortStep ? kLineBytes : kShortStep;
  static constexpr int kBytes = kElements;
  static constexpr int kScales = 0;
  static constexpr int kWords = kElements / 2;
  // A lane's sum of a pair has 24 bits; 256 of them have 32.
  static constexpr std::int64_t kMostBlocks = 256 / (kElements / kShortStep);
  static constexpr int kPairs = 6;
  static constexpr bool kWhole = true;

  template <int N, int R>
  struct Sums {
    I part[N][R];
    F sum[N][R];

    TF_MEMBER Sums() {
      TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int j = 0; j < R; ++j) {
        part[n][j] = set_int(0);
        sum[n][j] = zero();
      }
    }
    TF_MEMBER void add(const Element* const (&at)[R], const float* const (&)[R], const Word* packed) {
      const auto* x = reinterpret_cast<const std::int32_t*>(packed);
      TF_UNROLL for (int step = 0; step < kElements / kShortStep; ++step) {
        I code[R];
        TF_UNROLL for (int j = 0; j < R; ++j) code[j] = load_shorts(at[j] + step * kShortStep);
        TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int j = 0; j < R; ++j) part[n][j] =
            multiply_add_pairs(part[n][j], code[j], load_int(x + n * kWords + step * kVecLanes));
        end_of_step();
      }
    }
    TF_MEMBER void settle() {
      TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int j = 0; j < R; ++j) {
        sum[n][j] = tileformer::TILEFORMER_UNIT::add(sum[n][j], to_float(part[n][j]));
        part[n][j] = set_int(0);
      }
    }
    TF_MEMBER F total(int n, int j) const { return sum[n][j]; }
  };

  TF_MEMBER static void copy_rest(const Element* at, const float*, int elements, Element* to, float*) {
    copy_some<kElements>(to, at, elements);
  }

  template <class TX>
  TF_MEMBER static float pack(const typename TX::Element* row, std::int64_t elements, Word* out,
                              std::int64_t stride) {
    const WholeRow whole = whole_row<TX>(row, elements);
    for (std::int64_t d = 0; d < elements; out += stride)
      for (int w = 0; w < kWords; w += kVecLanes, d += kShortStep)
        store_whole<TX>(row + d, elements - d, whole, reinterpret_cast<std::int16_t*>(out + w));
    return whole.factor;
  }
};

// Two codes to a byte, with a scale for every kGroup of them: sums of a vector of codes are whole, and times
// their scale in fp32.
template <int kGroup>
struct NibbleRows {
  using Element = std::uint8_t;
  static constexpr int kLaneElements = 8, kStep = kLaneElements * kVecLanes;
  static constexpr int kElements = kStep > kGroup ? kStep : kGroup;
  static constexpr int kBytes = kElements / 2;
  static constexpr int kScales = kElements / kGroup;
  static constexpr int kWords = kElements / 2;
  static constexpr std::int64_t kMostBlocks = INT64_MAX;
  static constexpr int kPairs = 4;
  static constexpr bool kWhole = true;
  static_assert(kElements % kStep == 0);

  template <int N, int R>
  struct Sums {
    F sum[N][R];

    TF_MEMBER Sums() {
      TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int j = 0; j < R; ++j) sum[n][j] = zero();
    }
    TF_MEMBER void add(const Element* const (&at)[R], const float* const (&scale)[R], const Word* packed) {
      const auto* x = reinterpret_cast<const std::int32_t*>(packed);
      TF_UNROLL for (int step = 0; step < kElements; step += kStep) TF_UNROLL for (int j = 0; j < R; ++j) {
        I code[4];
        load_nibbles(at[j] + step / 2, code);
        const F s = spread<kGroup / kLaneElements>(scale[j] + step / kGroup);
        TF_UNROLL for (int n = 0; n < N; ++n) {
          I whole = set_int(0);
          TF_UNROLL for (int k = 0; k < 4; ++k) whole =
              multiply_add_pairs(whole, code[k], load_int(x + n * kWords + step / 2 + k * kVecLanes));
          sum[n][j] = fma(to_float(whole), s, sum[n][j]);
        }
        end_of_step();
      }
    }
    TF_MEMBER void settle() {}
    TF_MEMBER F total(int n, int j) const { return sum[n][j]; }
  };

  TF_MEMBER static void copy_rest(const Element* at, const float* scale, int elements, Element* to,
                                  float* scales) {
    copy_some<kBytes>(to, at, elements / 2);
    __builtin_memcpy(scales, scale, elements / kGroup * sizeof(float));
  }

  // In the order of load_nibbles.
  template <class TX>
  TF_MEMBER static float pack(const typename TX::Element* row, std::int64_t elements, Word* out,
                              std::int64_t stride) {
    const WholeRow whole = whole_row<TX>(row, elements);
    for (std::int64_t d = 0; d < elements; d += kElements, out += stride) {
      std::int16_t natural[kElements];
      for (int i = 0; i < kElements; i += kShortStep)
        store_whole<TX>(row + d + i, elements - d - i, whole, natural + i);
      auto* to = reinterpret_cast<std::int16_t*>(out);
      for (int step = 0; step < kElements; step += kStep)
        for (int k = 0; k < 4; ++k)
          for (int i = 0; i < kShortStep; ++i) *to++ = natural[step + 4 * i + k];
    }
    return whole.factor;
  }
};

}  // namespace tileformer::TILEFORMER_UNIT
