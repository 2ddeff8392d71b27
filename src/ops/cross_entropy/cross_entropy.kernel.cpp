// Cross-entropy of a row in two passes: maximum and sum together (online softmax), then the gradient over the
// logits. A row of 49152 fp32 logits is 192 KiB: the second pass reads it from L2.
#include "tile/unit.h"
//
#include "ops/cross_entropy/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using cross_entropy_op::KernelArgs;

constexpr float kLowest = -3.40282347e38f;
constexpr int kChains = 4;    // independent accumulators: maximum and sum would wait for their own latency
constexpr int kBlock = 1024;  // logits as fp32 in L1 (4 KiB) between the maximum and the exponentials

// x = c * tanh(v / c) and dx/dv, or x = v.
template <bool kSoftcap>
struct Softcap {
  F cap, inverse;
  TF_MEMBER explicit Softcap(float c) : cap(set(c)), inverse(set(kSoftcap ? 1 / c : 0)) {}
  TF_MEMBER F operator()(F v, F* slope) const {
    if constexpr (!kSoftcap) return v;
    const F t = tanh(mul(v, inverse));
    *slope = sub(set(1.0f), mul(t, t));
    return mul(cap, t);
  }
};

struct Statistics {
  float m = kLowest;  // largest x, NaN aside
  float sum = 0;      // of exp(x - m); NaN where some x is, 0 where all are -inf
  float total = 0;    // of x
};

// One pass over the row. A block's maximum is known before its exponentials, so that all lanes share one m
// and the sum is scaled once a block at most.
template <class T, bool kSoftcap>
TF_INLINE Statistics statistics_of(const typename T::Element* row, std::int64_t vocab, float softcap) {
  const Softcap<kSoftcap> cap(softcap);
  alignas(64) float block[kBlock];
  Statistics s;
  F sum = zero(), total = zero(), slope;
  for (std::int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int n = static_cast<int>(min_of<std::int64_t>(kBlock, vocab - begin));
    const int padded = static_cast<int>(round_up(n, kChains * kVecLanes));
    F largest[kChains], block_total[kChains], block_sum[kChains];
    TF_UNROLL for (int c = 0; c < kChains; ++c) {
      largest[c] = set(kLowest);
      block_total[c] = block_sum[c] = zero();
    }
    for (int i = 0; i < padded; i += kChains * kVecLanes) {
      TF_UNROLL for (int c = 0; c < kChains; ++c) {
        const int at = i + c * kVecLanes;
        const F x = cap(load_up_to<T>(row + begin + at, n - at), &slope);
        block_total[c] = add(block_total[c], x);  // beyond the end x is 0
        store(block + at, x);
      }
      if (TF_UNLIKELY(i + kChains * kVecLanes > n))
        for (int at = n; at < padded; ++at) block[at] = -kInfinity;
      TF_UNROLL for (int c = 0; c < kChains; ++c) largest[c] =
          max(load(block + i + c * kVecLanes), largest[c]);  // a NaN loses
    }
    const float m = max_of_lanes(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
    if (m > s.m) {
      sum = mul(sum, exp_minus(set(s.m), set(m)));
      s.m = m;
    }
    for (int i = 0; i < padded; i += kChains * kVecLanes) {
      TF_UNROLL for (int c = 0; c < kChains; ++c) block_sum[c] =
          add(block_sum[c], exp_minus(load(block + i + c * kVecLanes), set(s.m)));
    }
    sum = add(sum, add(add(block_sum[0], block_sum[1]), add(block_sum[2], block_sum[3])));
    total = add(total, add(add(block_total[0], block_total[1]), add(block_total[2], block_total[3])));
  }
  s.sum = sum_of_lanes(sum);
  s.total = sum_of_lanes(total);
  return s;
}

// gradient of class j = (scale * exp(x[j] - m) - offset) * slope[j]; the target's has its own offset.
struct Gradient {
  float m, scale, offset, target_offset;
};

template <class T, bool kSoftcap>
TF_INLINE F gradient_of(F v, const Softcap<kSoftcap>& cap, F m, F scale, F offset) {
  F slope = zero();
  const F x = cap(v, &slope);
  const F g = sub(mul(exp_minus(x, m), scale), offset);
  return kSoftcap ? mul(g, slope) : g;
}

template <class T, bool kSoftcap>
TF_INLINE void replace_by_gradient(typename T::Element* row, std::int64_t vocab, std::int64_t target,
                                   float softcap, const Gradient& g) {
  const Softcap<kSoftcap> cap(softcap);
  const F m = set(g.m), scale = set(g.scale), offset = set(g.offset);
  const F at_target =
      gradient_of<T>(set(first_lane(load_some<T>(row + target, 1))), cap, m, scale, set(g.target_offset));
  std::int64_t j = 0;
  for (; j + 2 * kVecLanes <= vocab; j += 2 * kVecLanes) {
    const F a = gradient_of<T>(load_elements(row + j, T{}), cap, m, scale, offset);
    const F b = gradient_of<T>(load_elements(row + j + kVecLanes, T{}), cap, m, scale, offset);
    store_elements(row + j, a, T{});
    store_elements(row + j + kVecLanes, b, T{});
  }
  for (; j < vocab; j += kVecLanes) {
    const int n = static_cast<int>(min_of<std::int64_t>(kVecLanes, vocab - j));
    const F x = gradient_of<T>(load_up_to<T>(row + j, n), cap, m, scale, offset);
    if (n == kVecLanes)
      store_elements(row + j, x, T{});
    else
      store_some<T>(row + j, x, n);
  }
  store_some<T>(row + target, at_target, 1);
}

template <class T, bool kSoftcap>
TF_NOINLINE void one_row(const KernelArgs& a, std::int64_t r) {
  using Element = typename T::Element;
  Element* const row = static_cast<Element*>(a.logits) + r * a.row_stride;
  const std::int64_t target = a.target[r * a.target_stride];
  float* const loss = a.loss + r * a.loss_stride;
  float* const lse_out = a.lse ? a.lse + r * a.lse_stride : nullptr;
  if (target == a.ignore_index) {
    *loss = 0;
    if (lse_out) *lse_out = 0;
    if (a.gradient) __builtin_memset(row, 0, static_cast<std::size_t>(a.vocab) * sizeof(Element));
    return;
  }
  F slope;
  const F x_target = Softcap<kSoftcap>(a.softcap)(set(first_lane(load_some<T>(row + target, 1))), &slope);
  const Statistics s = statistics_of<T, kSoftcap>(row, a.vocab, a.softcap);
  const bool normal = s.sum > 0;
  const float log_sum = normal ? first_lane(log2(set(s.sum))) * kLn2 : __builtin_nanf("");
  const float lse = s.sum == 0 ? -kInfinity : s.m + log_sum;

  // Differences from m first: m and log_sum may differ by orders of magnitude.
  const float smoothing = a.label_smoothing;
  float value = (1 - smoothing) * ((s.m - first_lane(x_target)) + log_sum);
  if (smoothing > 0) value += smoothing * ((s.m - s.total / static_cast<float>(a.vocab)) + log_sum);
  if (a.z_loss > 0) value += a.z_loss * lse * lse;
  *loss = value;
  if (lse_out) *lse_out = lse;
  if (!a.gradient) return;

  const float row_scale = a.row_scale ? a.row_scale[r * a.row_scale_stride] : 1;
  const float slope_of_lse = a.z_loss > 0 ? 1 + 2 * a.z_loss * lse : 1;
  Gradient g;
  g.m = s.m;
  g.scale = normal ? row_scale * slope_of_lse / s.sum : __builtin_nanf("");
  g.offset = row_scale * smoothing / static_cast<float>(a.vocab);
  g.target_offset = g.offset + row_scale * (1 - smoothing);
  replace_by_gradient<T, kSoftcap>(row, a.vocab, target, a.softcap, g);
}

template <class T>
TF_INLINE void rows_of(const KernelArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    if (a.softcap > 0)
      one_row<T, true>(a, r);
    else
      one_row<T, false>(a, r);
  }
}

void run(const KernelArgs& a) {
  for (;;) {
    const std::int64_t begin = __atomic_fetch_add(a.next_row, a.rows_per_item, __ATOMIC_RELAXED);
    if (begin >= a.rows) break;
    const std::int64_t end = min_of(begin + a.rows_per_item, a.rows);
    if (a.dtype == DType::f32)
      rows_of<F32>(a, begin, end);
    else if (a.dtype == DType::f16)
      rows_of<F16>(a, begin, end);
    else
      rows_of<BF16>(a, begin, end);
  }
}

}  // namespace

extern const cross_entropy_op::Unit cross_entropy_unit;
const cross_entropy_op::Unit cross_entropy_unit = {TF_STRINGIZE(TILEFORMER_UNIT), run};

}  // namespace tileformer::TILEFORMER_UNIT
