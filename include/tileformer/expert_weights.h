// The weights of a mixture of experts, as every operator on experts takes them.
#pragma once

#include <cstdint>

#include "tileformer/tensor_view.h"

namespace tileformer {

// One matrix product of all experts: y = W x + bias.
//
// Transposed storage is a view: a tensor [experts, in, out] is passed with its last two dimensions exchanged.
struct ExpertWeights {
  // [experts, out, in], f32, f16, bf16 (f64: reference loops), or codes: i8 [experts, out, in], i4x2
  // [experts, out, in / 2] (element 2 i of a row in the low half of byte i). Unit stride in the last or in
  // the middle dimension (codes: in the last).
  TensorView weight;
  // Of codes only, f32: element = code * scale. i8: [experts, out]. i4x2: [experts, out, in / group] with
  // groups of 32, 64 or 128 neighbours along `in`, which they divide. Unit stride in the last dimension.
  TensorView scale;
  // Optional [experts, out], f32, f16 or bf16 (f64 beside f64 weights), unit stride in the last dimension.
  TensorView bias;
};

}  // namespace tileformer
