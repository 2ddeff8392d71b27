// Weighted sum of the parts' rows, one row of out at a time; bound by memory.
#include "tile/unit.h"
//
#include "ops/merge_attention/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using merge_attention::KernelArgs;
using merge_attention::Operand;

constexpr int kMaxParts = 256;  // as check() allows

// The parts of a row that saw something.
struct Parts {
  int count = 0;
  const void* row[kMaxParts];
  DType dtype[kMaxParts];
  alignas(64) float weight[kMaxParts];  // they add up to 1
  float lse;                            // of all
};

TF_INLINE char* row_address(const Operand& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  return static_cast<char*>(x.data) + (b * x.batch + h * x.head + i * x.row) * x.element_size;
}

TF_NOINLINE void weigh_parts(const KernelArgs& a, std::int64_t b, std::int64_t h, std::int64_t i,
                             Parts& parts) {
  parts.count = 0;
  float m = -kInfinity;
  for (std::int64_t p = 0; p < a.parts; ++p) {
    const float lse = *reinterpret_cast<const float*>(row_address(a.part_lse[p], b, h, i));
    if (lse == -kInfinity) continue;
    parts.row[parts.count] = row_address(a.part_out[p], b, h, i);
    parts.dtype[parts.count] = a.part_out[p].dtype;
    parts.weight[parts.count++] = lse;
    m = lse > m ? lse : m;
  }
  parts.lse = -kInfinity;
  if (parts.count == 0) return;

  const F none = set(-kInfinity), infinite = set(kInfinity), largest = set(m);
  for (int p = parts.count; p < round_up(parts.count, kVecLanes); ++p) parts.weight[p] = -kInfinity;
  for (int p = 0; p < parts.count; p += kVecLanes) {
    const F lse = load(parts.weight + p);
    F x = sub(lse, largest);
    // Infinities share, and leave nothing to the rest.
    if (m == kInfinity) x = select(equal(lse, infinite), zero(), select(equal(lse, lse), none, lse));
    // With NaN alone m is -inf.
    x = select(equal(lse, lse), x, lse);
    store(parts.weight + p, exp2(mul(x, set(kLog2E))));
  }
  float sum = 0;
  for (int p = 0; p < parts.count; ++p) sum += parts.weight[p];
  for (int p = 0; p < parts.count; ++p) parts.weight[p] /= sum;
  parts.lse = sum != sum || m == kInfinity ? sum + m : m + kLn2 * first_lane(log2(set(sum)));
}

TF_INLINE F load_columns(const void* row, DType dtype, std::int64_t d, std::int64_t n) {
  switch (dtype) {
    case DType::f32: return load_up_to<F32>(static_cast<const float*>(row) + d, n);
    case DType::f16: return load_up_to<F16>(static_cast<const std::uint16_t*>(row) + d, n);
    default: return load_up_to<BF16>(static_cast<const std::uint16_t*>(row) + d, n);
  }
}

// A column is read from every part before it is written: out may stand where a part does.
template <class T>
TF_NOINLINE void write_row(const Parts& parts, std::int64_t dim_v, typename T::Element* out) {
  for (std::int64_t d = 0; d < dim_v; d += kVecLanes) {
    const std::int64_t n = dim_v - d;
    F sum = zero();
    for (int p = 0; p < parts.count; ++p)
      sum = fma(set(parts.weight[p]), load_columns(parts.row[p], parts.dtype[p], d, n), sum);
    if (TF_LIKELY(n >= kVecLanes))
      store_elements(out + d, sum, T{});
    else
      store_some<T>(out + d, sum, static_cast<int>(n));
  }
}

void merge_row(const KernelArgs& a, std::int64_t index) {
  const std::int64_t i = index % a.seq, h = index / a.seq % a.heads, b = index / a.seq / a.heads;
  Parts parts;
  weigh_parts(a, b, h, i, parts);
  char* out = row_address(a.out, b, h, i);
  switch (a.out.dtype) {
    case DType::f32: write_row<F32>(parts, a.dim_v, reinterpret_cast<float*>(out)); break;
    case DType::f16: write_row<F16>(parts, a.dim_v, reinterpret_cast<std::uint16_t*>(out)); break;
    default: write_row<BF16>(parts, a.dim_v, reinterpret_cast<std::uint16_t*>(out)); break;
  }
  if (a.lse.data) *reinterpret_cast<float*>(row_address(a.lse, b, h, i)) = parts.lse;
}

void run(const KernelArgs& a) {
  const std::int64_t rows = a.batch * a.heads * a.seq;
  for (;;) {
    const std::int64_t first = __atomic_fetch_add(a.next_row, a.rows_per_item, __ATOMIC_RELAXED);
    if (first >= rows) break;
    for (std::int64_t i = first; i < min_of(first + a.rows_per_item, rows); ++i) merge_row(a, i);
  }
}

}  // namespace

extern const merge_attention::Unit merge_attention_unit;
const merge_attention::Unit merge_attention_unit = {TF_STRINGIZE(TILEFORMER_UNIT), run};

}  // namespace tileformer::TILEFORMER_UNIT
