// From weights to how they are stored: calls use(form), see streamed.h, or use(storage). Included by kernels
// only.
#pragma once

#include "ops/moe/common/code_run.h"
#include "ops/moe/common/column_run.h"
#include "ops/moe/common/row_run.h"

namespace tileformer::TILEFORMER_UNIT {

// Weights stored as T.
template <class T, class Use>
TF_INLINE auto for_plain_form(const moe::WeightOperand& w, Use use) {
  if (w.weight.column == 1) return use(StreamedRows<PlainRows<T>>{});
  return use(StreamedColumns<T>{});
}

// Weights stored as T or as codes.
template <class T, class Use>
TF_INLINE auto for_form(const moe::WeightOperand& w, Use use) {
  if (w.weight.dtype == DType::i8) return use(StreamedRows<ByteRows>{});
  if (w.weight.dtype != DType::i4x2) return for_plain_form<T>(w, use);
  if (w.group == 32) return use(StreamedRows<NibbleRows<32>>{});
  if (w.group == 64) return use(StreamedRows<NibbleRows<64>>{});
  return use(StreamedRows<NibbleRows<128>>{});
}

template <class T, class Use>
TF_INLINE auto for_weights(const moe::WeightOperand& w, Use use) {
  if (w.weight.dtype == DType::i8) return use(I8{});
  if (w.weight.dtype == DType::i4x2) return use(I4{});
  return use(T{});
}

}  // namespace tileformer::TILEFORMER_UNIT
