// Cross-entropy of rows of logits, and its gradient in place of the logits.
//
//   x[j]    = softcap(logits[j]),  softcap(v) = c * tanh(v / c), or v without softcap
//   lse     = log(sum_j exp(x[j]))
//   nll[j]  = lse - x[j]
//   loss    = (1 - label_smoothing) * nll[target] + label_smoothing * mean_j nll[j] + z_loss * lse^2
//
// per row: the caller sums or averages. Statistics are fp32 whatever the dtype of the logits. With `gradient`
// each row of logits becomes row_scale * d loss / d logits, rounded once.
//
// A row whose target is ignore_index is not read: its loss and lse are 0, its gradient is 0 whatever it
// holds. A NaN or +inf logit makes loss, lse and gradient of its own row NaN and no other (+inf: lse too, as
// torch has it). -inf is a class of probability 0; as the target, or with label_smoothing, its loss is +inf.
// A row of nothing but -inf has lse -inf, loss and gradient NaN.
//
// Results are the same bits for any number of threads, and a row's do not depend on other rows.
//
// Sources: Szegedy et al. (2016) for label smoothing; Chowdhery et al., PaLM (2022) for the z-loss; Milakov
// and Gimelshein, Online normalizer calculation for softmax (2018). Semantics follow
// torch.nn.functional.cross_entropy.
#pragma once

#include <cstdint>

#include "tileformer/executor.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer {

struct CrossEntropyArgs {
  // [rows, vocab], f32, f16 or bf16 (f64: reference loops), unit stride in the last dimension, vocab at
  // least 1. With `gradient` it is overwritten: no two rows may overlap.
  TensorView logits;
  // i64 [rows]: 0 <= target < vocab, or ignore_index.
  TensorView target;
  // [rows], f32 (f64 with f64 logits). lse is optional.
  TensorView loss, lse;
  // Optional f32 [rows] (f64 with f64 logits): factor of the row's gradient. Only with `gradient`.
  TensorView row_scale;

  bool gradient = false;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;  // 0..1
  double z_loss = 0;           // finite, at least 0
  double softcap = 0;          // c > 0; 0: none
};

// Nothing is written unless every argument, every target included, is right.
Status cross_entropy(const CrossEntropyArgs& args, Executor& executor);

// The same as loops over fp64, obviously right and slow: oracle, documentation, and the path for f64.
Status cross_entropy_reference(const CrossEntropyArgs& args);

}  // namespace tileformer
