// New keys and values into their slots of a paged pool, rotated and quantised on the way; and the two things
// that go with it: queries rotated by the same code, and copies of pages.
//
//   rotary   halves (NeoX):        y[i] = x[i] c[i] - x[i+r/2] s[i],     y[i+r/2] = x[i+r/2] c[i] + x[i] s[i]
//            interleaved (GPT-J):  y[2i] = x[2i] c[i] - x[2i+1] s[i],    y[2i+1] = x[2i+1] c[i] + x[2i] s[i]
//            for i < r/2; c, s: the row of cos and sin at the token's position; elements from r on stay as
//            they are. In fp32, before rounding or quantising.
//   codes    scale = max |x| / q with q = 127 (i8), 448 (f8_e4m3), 57344 (f8_e5m2), one for each token and
//   head;
//            code = x * (q / max |x|), both in fp32, rounded to nearest even, saturated. A row whose max |x|
//            is below 2^-100 has scale 0 and codes 0. A row that holds NaN or Inf has scale NaN: the fault
//            shows in the result of whoever attends to the row and of nobody else.
//
// Where dtypes agree and nothing rotates, rows are copied bit for bit.
//
// Sources: Su et al., RoFormer (2021); OCP 8-bit Floating Point Specification (2023).
#pragma once

#include <span>

#include "tileformer/executor.h"
#include "tileformer/page_table.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer {

struct Rotary {
  // [positions, rotary_dim / 2], f32 or the dtype of what is rotated, unit stride in the last dimension.
  // rotary_dim is at most dim. Absent: nothing rotates.
  TensorView cos, sin;
  // i64 [tokens], each a row of cos.
  TensorView positions;
  bool interleaved = false;
};

struct AppendArgs {
  // [tokens, kv_heads, dim] and [tokens, kv_heads, dim_v]: f32, f16 or bf16, each its own, unit stride in the
  // last dimension and any others. dim, dim_v in 1..576. value and value_pages may both be absent.
  TensorView key, value;
  // [pages, kv_heads, page_size, dim] and [.., dim_v]: f32, f16, bf16, i8, f8_e4m3 or f8_e5m2, each its own,
  // unit stride in the last dimension.
  TensorView key_pages, value_pages;
  // f32 [pages, kv_heads, page_size], for quantised pages and for no others.
  TensorView key_scale, value_scale;
  // i64 [tokens]: page * page_size + row, or -1 for a token that is not kept. No slot may come twice.
  TensorView slots;
  // Of the keys. A token that is not kept needs a valid position all the same.
  Rotary rotary;
};

// Nothing is written unless every argument is right, every slot and position included.
Status append_kv(const AppendArgs& args, Executor& executor);

// The same as plain loops: oracle and documentation.
Status append_kv_reference(const AppendArgs& args);

struct RotaryArgs {
  // [tokens, heads, dim], one dtype out of f32, f16, bf16, unit stride in the last dimension. `out` may be
  // `in`; otherwise they must not overlap.
  TensorView in, out;
  Rotary rotary;
};

Status apply_rotary(const RotaryArgs& args, Executor& executor);

// The copies that PageTable::extend asks for, in each of the pools: [pages, kv_heads, page_size, dim] or, of
// scales, [pages, kv_heads, page_size]; any dtype, unit stride in the last dimension. No page may be both
// copied and written, nor written twice.
Status copy_pages(std::span<const TensorView> pools, std::span<const PageCopy> copies, Executor& executor);

}  // namespace tileformer
