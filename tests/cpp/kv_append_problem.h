// Keys, values and pools between guard pages, and append_kv on every unit that this machine can run.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "guarded_tensors.h"
#include "ops/kv_cache/units.h"
#include "tileformer/kv_append.h"
#include "unit_targets.h"

namespace tileformer::test {

enum class RowsLayout { dense, gaps, heads_first, reversed };
enum class PoolLayout { dense, gaps, rows_first };

struct KvShape {
  std::int64_t tokens = 21, heads = 3, dim = 40, dim_v = 24, page_size = 16, pages = 4;
  DType key = DType::bf16, value = DType::bf16, key_pages = DType::bf16, value_pages = DType::bf16;
  RowsLayout rows = RowsLayout::dense;
  PoolLayout pool = PoolLayout::dense;
};

class KvAppendProblem {
 public:
  explicit KvAppendProblem(const KvShape& shape, unsigned seed = 1, Edge edge = Edge::end)
      : shape_(shape), tensors_(edge), random_(seed) {
    args.key = rows(shape.key, shape.dim);
    args.value = rows(shape.value, shape.dim_v);
    args.key_pages = pool(shape.key_pages, shape.dim);
    args.value_pages = pool(shape.value_pages, shape.dim_v);
    args.key_scale = scale(shape.key_pages);
    args.value_scale = scale(shape.value_pages);
    args.slots = tensors_.allocate_dense(DType::i64, 1, {shape.tokens});
    std::vector<std::int64_t> all(static_cast<std::size_t>(shape.pages * shape.page_size));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_);
    for (std::int64_t t = 0; t < shape.tokens; ++t) slot(t) = t % 7 == 5 || all.empty() ? -1 : all[t];
  }

  // cos and sin of random angles, in this dtype.
  void rotate(std::int64_t rotary_dim, bool interleaved, DType dtype) {
    args.rotary = make_rotary(args.key.shape[0], rotary_dim, interleaved, dtype);
  }
  Rotary make_rotary(std::int64_t tokens, std::int64_t rotary_dim, bool interleaved, DType dtype) {
    constexpr std::int64_t kPositions = 50;
    Rotary rotary;
    const std::int64_t half = rotary_dim / 2;
    rotary.cos = tensors_.allocate(dtype, 2, {kPositions, half}, {half + 1, 1});
    rotary.sin = tensors_.allocate(dtype, 2, {kPositions, half}, {half, 1});
    for_each_index(rotary.cos, [&](const Index& at) {
      const double angle = std::uniform_real_distribution<double>(-3, 3)(random_);
      set(rotary.cos, at, std::cos(angle));
      set(rotary.sin, at, std::sin(angle));
    });
    rotary.positions = tensors_.allocate_dense(DType::i64, 1, {tokens});
    for (std::int64_t t = 0; t < tokens; ++t)
      static_cast<std::int64_t*>(rotary.positions.data)[t] = (t * 7 + 3) % kPositions;
    rotary.interleaved = interleaved;
    return rotary;
  }

  std::int64_t& slot(std::int64_t t) { return static_cast<std::int64_t*>(args.slots.data)[t]; }
  GuardedTensors& tensors() { return tensors_; }

  AppendArgs args;

 private:
  TensorView rows(DType dtype, std::int64_t dim) {
    const std::int64_t t = shape_.tokens, h = shape_.heads;
    Sizes stride{h * dim, dim, 1};
    if (shape_.rows == RowsLayout::gaps) stride = {h * (dim + 5) + 9, dim + 5, 1};
    if (shape_.rows == RowsLayout::heads_first) stride = {dim, t * dim, 1};
    if (shape_.rows == RowsLayout::reversed) stride = {-h * dim, dim, 1};
    const TensorView view = tensors_.allocate(dtype, 3, {t, h, dim}, stride);
    std::normal_distribution<double> normal;
    for_each_index(view, [&](const Index& at) { set(view, at, normal(random_) * (at[0] % 3 ? 1 : 40)); });
    return view;
  }

  TensorView pool(DType dtype, std::int64_t dim) {
    const std::int64_t h = shape_.heads, p = shape_.page_size;
    Sizes stride{h * p * dim, p * dim, dim, 1};
    if (shape_.pool == PoolLayout::gaps) stride = {h * p * (dim + 3) + 7, p * (dim + 3), dim + 3, 1};
    if (shape_.pool == PoolLayout::rows_first) stride = {h * p * dim, dim, h * dim, 1};
    return tensors_.allocate_output(dtype, 4, {shape_.pages, h, p, dim}, stride);
  }

  TensorView scale(DType pages) {
    if (!is_quantized(pages)) return {};
    const std::int64_t h = shape_.heads, p = shape_.page_size;
    Sizes stride{h * p, p, 1};
    if (shape_.pool == PoolLayout::gaps) stride = {h * p * 2 + 1, p * 2, 2};
    return tensors_.allocate_output(DType::f32, 3, {shape_.pages, h, p}, stride);
  }

  KvShape shape_;
  GuardedTensors tensors_;
  std::mt19937 random_;
};

using KvTarget = UnitTarget<kv_cache::Unit>;

inline const std::vector<KvTarget>& kv_targets() {
  static const std::vector<KvTarget> all = unit_targets(kv_cache::units());
  return all;
}

template <typename Call>
Status run_on(const KvTarget& on, Call call) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  return call();
}

}  // namespace tileformer::test
