// Gradients of a mixture of experts for one unit, in the transposed form: lanes are (token, expert) pairs, as
// in the forward. A wave takes the pairs of some experts through these phases:
//
//   pack      hidden and grad_out rows of the pairs, gathered: as lanes for the products with weights, as
//             steps for the sums over pairs
//   inter     for each slice of inter:   Q^T = down^T dY^T,   and gate, up: read, or computed again
//             h, d gate, d up leave the tile in the forms that the next phases multiply; <q, h> is summed
//   hidden    for each slice of hidden:  dX^T = gate_up^T D^T,   grad_hidden[token] += dX
//   weights   for each block of rows:    grad_gate_up = D^T X,   grad_down^T = (weight h)^T dY
//
// Lanes beyond an expert's pairs are zero wherever lanes are summed. Slices of inter and blocks of groups do
// not depend on threads or waves, and sums are added up in the order of experts and groups: the same bits for
// any number of threads.

#include "tile/unit.h"
//
#include "tile/pack.h"
//
#include "ops/moe/common/items.h"
#include "ops/moe/experts/backward/inter_gradient.h"
#include "ops/moe/experts/combine.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

// ---- pack
// -----------------------------------------------------------------------------------------------------------

// <dy, down_bias> of each lane.
template <class T>
TF_NOINLINE void bias_products(const BackwardKernelArgs& b, std::int64_t expert,
                               const typename T::Element* const (&row)[kLanes], float* to) {
  const KernelArgs& a = b.forward;
  constexpr int kColumns = 16;
  alignas(64) float bias[kColumns], dy[kColumns * kLanes];
  F sum[kVecs];
  TF_UNROLL for (int j = 0; j < kVecs; ++j) sum[j] = zero();
  for (std::int64_t d = 0; d < a.hidden_dim && a.down.bias.data; d += kColumns) {
    const int n = static_cast<int>(min_of<std::int64_t>(kColumns, a.hidden_dim - d));
    const typename T::Element* at[kLanes];
    for (int l = 0; l < kLanes; ++l) at[l] = row[l] ? row[l] + d : nullptr;
    load_bias(a.down, expert, d, n, bias);
    read_lanes<T>(at, n, dy);
    for (int i = 0; i < n; ++i)
      TF_UNROLL for (int j = 0; j < kVecs; ++j) sum[j] =
          fma(set(bias[i]), load(dy + i * kLanes + j * kVecLanes), sum[j]);
  }
  TF_UNROLL for (int j = 0; j < kVecs; ++j) store(to + j * kVecLanes, sum[j]);
}

template <class T>
TF_NOINLINE void pack_group(const BackwardKernelArgs& b, const Share& share, int group) {
  const KernelArgs& a = b.forward;
  const GroupWords words = group_words(b);
  const std::int64_t at = share.first_group + group, slice_words = groups_of(share) * kLaneWords * kLanes;
  const typename T::Element *hidden[kLanes], *grad[kLanes];
  const int lanes = lanes_of(share, group);
  for (int l = 0; l < kLanes; ++l) {
    const std::int64_t pair = share.first_pair + group * kLanes + l;
    hidden[l] = l < lanes ? hidden_row<T>(a, pair) : nullptr;
    grad[l] = l < lanes ? grad_row<T>(b, pair) : nullptr;
  }
  const auto steps = [&](void* buffer, std::int64_t of_group) {
    return at_group(buffer, of_group, share.first_group) + group * kLaneWords * kLanes;
  };
  if (words.hidden_lanes)
    pack_lanes<T>(hidden, a.hidden_dim, 1, at_group(b.hidden_lanes, words.hidden_lanes, at));
  if (words.grad_lanes) pack_lanes<T>(grad, a.hidden_dim, 1, at_group(b.grad_lanes, words.grad_lanes, at));
  if (words.hidden_steps)
    pack_lane_steps<T>(hidden, a.hidden_dim, slice_words, steps(b.hidden_steps, words.hidden_steps));
  if (words.grad_steps)
    pack_lane_steps<T>(grad, a.hidden_dim, slice_words, steps(b.grad_steps, words.grad_steps));
  if (b.weight_parts)
    bias_products<T>(b, share.expert, grad,
                     b.weight_parts + ceil_div(a.inter, a.inter_slice) * b.wave_lanes + at * kLanes);
}

// ---- hidden
// ---------------------------------------------------------------------------------------------------------

// dX^T of run r, added to the rows of its tokens.
template <class T>
TF_NOINLINE void add_hidden(const BackwardKernelArgs& b, const BackwardScratch& x, std::int64_t r,
                            std::int64_t first, int n) {
  const KernelArgs& a = b.forward;
  const GroupRun& run = b.runs[r];
  const Share& share = b.shares[run.share];
  const GroupWords words = group_words(b);
  const std::int64_t c_group = slice_rows(n) * kLanes, d_group = kRowsAreLanes ? words.d : words.d_lanes;
  const std::int64_t d_part = kRowsAreLanes ? d_part_words(a) : query_words(part_size(a));
  const Word* d = at_group(kRowsAreLanes ? b.d : b.d_lanes, d_group, share.first_group + run.first);
  for (int p = 0; p < parts_of(a); ++p) {
    WeightOperand part{};
    part.weight = exchanged(a.gate_up.weight);
    part.weight.data =
        static_cast<const typename T::Element*>(a.gate_up.weight.data) + p * a.inter * a.gate_up.weight.row;
    slice_product<T>(
        {&part, share.expert, 1, {first, 0}, n, part_size(a), nullptr},
        {d + p * d_part, d_group, run.groups, ends_half(share, run), x.c, c_group, x.panel, p > 0});
  }
  alignas(64) float ones[kLanes];
  for (int l = 0; l < kLanes; ++l) ones[l] = 1;
  for (int g = 0; g < run.groups; ++g) {
    const int lanes = lanes_of(share, run.first + g);
    const std::int64_t pair = share.first_pair + (run.first + g) * kLanes;
    float* row[kLanes];
    for (int l = 0; l < kLanes; ++l)
      row[l] = l < lanes ? b.sum + a.pair_token[pair + l] * b.sum_stride + first : nullptr;
    add_lanes(x.c + g * c_group, n, x.bias, ones, lanes, row);
  }
}

template <class T>
TF_NOINLINE void hidden_slice(const BackwardKernelArgs& b, const BackwardScratch& x, std::int64_t item) {
  const KernelArgs& a = b.forward;
  const std::int64_t first = item * a.hidden_slice;
  const int n = static_cast<int>(min_of(a.hidden_slice, a.hidden_dim - first));
  if (b.first_wave)
    for (std::int64_t t = 0; t < a.tokens; ++t)
      __builtin_memset(b.sum + t * b.sum_stride + first, 0, sizeof(float) * n);
  __builtin_memset(x.bias, 0, sizeof(float) * slice_rows(n));
  for (std::int64_t r = 0; r < b.runs_count; ++r) add_hidden<T>(b, x, r, first, n);
  if (b.last_wave && b.grad_hidden != b.sum)
    convert_rows<T>(b.sum + first, b.sum_stride, a.tokens, n,
                    static_cast<typename T::Element*>(b.grad_hidden) + first, b.grad_hidden_stride);
}

// ---- weights
// --------------------------------------------------------------------------------------------------------

// A block of rows of an expert's weights, summed over the pairs of a share.
struct RowBlock {
  const Share& share;
  std::int64_t index;
  const Word* rows;
  std::int64_t rows_group;
  int row_count;
  std::int64_t first_row;  // in the gradient
};

// At most kBlockColumns columns of the other operand.
struct ColumnBlock {
  const Word* steps;
  std::int64_t group_words, slice_words;
  std::int64_t first, count;  // in the gradient
  std::int64_t sum;           // in a row of sums from wave to wave
};

// Added up, and written once they are complete.
TF_NOINLINE void sum_block(const BackwardKernelArgs& b, const BackwardScratch& x, const RowBlock& r,
                           const ColumnBlock& c, const ExpertOperand& to) {
  const Share& share = r.share;
  PairSums sums{r.rows,           r.rows_group, c.steps, c.group_words, c.slice_words,
                groups_of(share), r.row_count,  c.count, x.sums,        BackwardScratch::kSumStride,
                share.first};
  if (!share.first || !share.last) {
    sums.stride = expert_sum_stride(b.forward);
    sums.sums = b.expert_sums + r.index * kBlockRows * sums.stride + c.sum;
  }
  add_pairs(sums);
  if (!share.last) return;
  for_result_dtype(to.dtype, [&]<class G>(G) {
    write_sums<G>(sums.sums, sums.stride, r.row_count, c.count, to, share.expert, r.first_row, c.first);
  });
}

TF_NOINLINE void weight_block(const BackwardKernelArgs& b, const BackwardScratch& x, const Share& share,
                              std::int64_t item) {
  const KernelArgs& a = b.forward;
  const Blocks blocks(b);
  const GroupWords words = group_words(b);
  const bool down = item >= blocks.gate_up;
  const std::int64_t part = down ? 0 : item / blocks.of_part, size = down ? a.inter : part_size(a);
  const std::int64_t first = (down ? item - blocks.gate_up : item % blocks.of_part) * kBlockRows;
  const Word* rows = down ? at_group(b.h, words.h, share.first_group)
                          : at_group(b.d, words.d, share.first_group) + part * d_part_words(a);
  const RowBlock block{share,
                       item,
                       rows + first * kLaneWords,
                       down ? words.h : words.d,
                       static_cast<int>(min_of<std::int64_t>(kBlockRows, size - first)),
                       part * a.inter + first};
  const ExpertOperand to = down ? exchanged(b.grad_down) : b.grad_gate_up;
  if (to.data) {
    const std::int64_t of_group = down ? words.grad_steps : words.hidden_steps;
    const Word* steps = at_group(down ? b.grad_steps : b.hidden_steps, of_group, share.first_group);
    const std::int64_t slice_words = groups_of(share) * kLaneWords * kLanes;
    for (std::int64_t c = 0; c < a.hidden_dim; c += kBlockColumns)
      sum_block(b, x, block,
                {steps + c / kLanes * slice_words, kLaneWords * kLanes, slice_words, c,
                 min_of<std::int64_t>(kBlockColumns, a.hidden_dim - c), c},
                to);
  }
  if (!down && b.grad_gate_up_bias.data) {
    // A column of ones: the sum over pairs of each row.
    F ones[kElementsPerWord][kVecs];
    TF_UNROLL for (int k = 0; k < kElementsPerWord; ++k) TF_UNROLL for (int j = 0; j < kVecs; ++j)
        ones[k][j] = set(1.0f);
    for (int w = 0; w < kLaneWords; ++w) store_lane_pairs(x.ones + w * kLanes, ones);
    sum_block(b, x, block, {x.ones, 0, 0, 0, 1, round_up(a.hidden_dim, kLanes)}, b.grad_gate_up_bias);
  }
}

// Columns from first on of the gradient of an expert's down_bias.
template <class T>
TF_NOINLINE void sum_down_bias(const BackwardKernelArgs& b, const BackwardScratch& x, std::int64_t expert,
                               std::int64_t first, int n) {
  const KernelArgs& a = b.forward;
  __builtin_memset(x.bias, 0, sizeof(float) * round_up(n, kVecLanes));
  for (std::int64_t pair = b.offsets[expert]; pair < b.offsets[expert + 1]; ++pair) {
    const auto* dy = grad_row<T>(b, pair) + first;
    const F weight = set(a.pair_weight[pair]);
    for (int d = 0; d < n; d += kVecLanes)
      store(x.bias + d, fma(weight, load_up_to<T>(dy + d, n - d), load(x.bias + d)));
  }
  const ExpertOperand& to = b.grad_down_bias;
  for_result_dtype(to.dtype, [&]<class G>(G) {
    auto* grad = static_cast<typename G::Element*>(const_cast<void*>(to.data)) + expert * to.expert + first;
    for (int d = 0; d < n; d += kVecLanes) store_some_of<G>(grad + d, load(x.bias + d), n - d);
  });
}

// ---- phases
// ------------------------------------------------------------------------------------------------------------

// Calls use(T{}, item) for each item that this worker takes.
template <class Use>
TF_INLINE void run_items(const BackwardKernelArgs& b, std::int64_t items, Use use) {
  enter_unit();
  for_dtype(b.forward.dtype, [&]<class T>(T) {
    for_items(b.forward.next_item, items, [&](std::int64_t item) { use(T{}, item); });
  });
  leave_unit();
}

TF_INLINE BackwardScratch scratch_of(const BackwardKernelArgs& b, int worker) {
  return BackwardScratch(b, b.forward.scratch + b.forward.scratch_bytes * worker);
}

void pack(const BackwardKernelArgs& b, int) {
  run_items(b, b.groups_count, [&]<class T>(T, std::int64_t item) {
    pack_group<T>(b, b.shares[b.groups[item].run], b.groups[item].index);
  });
}

void inter(const BackwardKernelArgs& b, int worker) {
  const BackwardScratch x = scratch_of(b, worker);
  const std::int64_t slices = ceil_div(b.forward.inter, b.forward.inter_slice);
  run_items(b, b.runs_count * slices, [&]<class T>(T, std::int64_t item) { inter_slice<T>(b, x, item); });
}

void hidden(const BackwardKernelArgs& b, int worker) {
  const BackwardScratch x = scratch_of(b, worker);
  run_items(b, ceil_div(b.forward.hidden_dim, b.forward.hidden_slice),
            [&]<class T>(T, std::int64_t item) { hidden_slice<T>(b, x, item); });
}

void weights(const BackwardKernelArgs& b, int worker) {
  const BackwardScratch x = scratch_of(b, worker);
  const Blocks blocks(b);
  const std::int64_t of_share = blocks.gate_up + blocks.down;
  run_items(b, b.shares_count * of_share,
            [&](auto, std::int64_t item) { weight_block(b, x, b.shares[item / of_share], item % of_share); });
}

void down_bias(const BackwardKernelArgs& b, int worker) {
  const BackwardScratch x = scratch_of(b, worker);
  const std::int64_t hidden = b.forward.hidden_dim, slice = b.forward.hidden_slice;
  const std::int64_t slices = ceil_div(hidden, slice);
  run_items(b, b.experts * slices, [&]<class T>(T, std::int64_t item) {
    const std::int64_t first = item % slices * slice;
    sum_down_bias<T>(b, x, item / slices, first, static_cast<int>(min_of(slice, hidden - first)));
  });
}

std::size_t scratch_bytes(const BackwardKernelArgs& b) { return BackwardScratch(b).bytes; }

}  // namespace

extern const moe::BackwardKernel experts_backward_kernel;
const moe::BackwardKernel experts_backward_kernel = {
    kSumGroups, group_words, scratch_bytes, expert_sum_floats, pack, inter, hidden, weights, down_bias};

}  // namespace tileformer::TILEFORMER_UNIT
