// A block of K or V as packing takes it, whatever it is stored as. Elements of the two may differ: each is
// packed by a function of its own type, chosen once for a call. Included by kernels only.
#pragma once

#include "ops/attention/key_rows.h"
#include "ops/attention/nonfinite_values.h"
#include "ops/attention/storage.h"

namespace tileformer::TILEFORMER_UNIT {

static_assert(kKeyBlock % kRunRows == 0);  // blocks start where runs do

// Keys [first, first + keys) of a sequence and kv head; packed, they are followed by zeros up to `padded`.
struct KeySpan {
  const KernelArgs& a;
  const KernelSequence& s;
  std::int64_t kv_head;
  int first, keys, padded;
};

template <class T>
struct KeyRuns {
  KeyRows<const typename T::Element> rows;
  KeyRows<const float> scales;
  int first;

  TF_MEMBER KeyRuns(const KeySpan& x, const Operand& elements, const Operand& scale)
      : rows(x.a, x.s, elements, x.kv_head), scales(x.a, x.s, scale, x.kv_head), first(x.first) {}
  TF_MEMBER RowRun<T> run(int i) const {
    RowRun<T> run{rows.at(first + i), rows.row};
    if constexpr (kIsCode<T>) {
      run.scales = scales.at(first + i);
      run.scale_stride = scales.row;
    }
    return run;
  }
};

template <class T>
TF_NOINLINE void pack_key_span(const KeySpan& x, Word* out) {
  pack_keys<T>(KeyRuns<T>(x, x.a.key, x.a.key_scale), x.keys, x.padded, x.a.dim, out);
}

// Returns whether all elements are finite. Those that are not are packed as zeros.
template <class T>
TF_NOINLINE bool pack_value_span(const KeySpan& x, Word* out) {
  F nonfinite;
  pack_values<T>(KeyRuns<T>(x, x.a.value, x.a.value_scale), x.keys, x.padded, x.a.dim_v, x.a.key_block, out,
                 &nonfinite);
  const bool finite = all(equal(nonfinite, nonfinite));
  if (TF_UNLIKELY(!finite)) clear_nonfinite(out, value_words(x.a.dim_v, x.a.key_block));
  return finite;
}

template <class T>
TF_COLD void add_nonfinite_span(const KeySpan& x, const LaneGroup& g, const MaskBlock& mask,
                                const BlockRows& rows, const Word* p, float* o) {
  add_nonfinite_values<T>(x.a, KeyRuns<T>(x, x.a.value, x.a.value_scale), g, mask, rows, p, o);
}

struct SpanPackers {
  void (*keys)(const KeySpan&, Word*);
  bool (*values)(const KeySpan&, Word*);
  void (*add_nonfinite)(const KeySpan&, const LaneGroup&, const MaskBlock&, const BlockRows&, const Word*,
                        float*);
};

TF_NOINLINE SpanPackers span_packers(const KernelArgs& a) {
  SpanPackers p;
  for_storage(a.key.dtype, [&]<class T>(T) { p.keys = pack_key_span<T>; });
  for_storage(a.value.dtype, [&]<class T>(T) {
    p.values = pack_value_span<T>;
    p.add_nonfinite = add_nonfinite_span<T>;
  });
  return p;
}

}  // namespace tileformer::TILEFORMER_UNIT
