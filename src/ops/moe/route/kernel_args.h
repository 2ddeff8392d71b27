// What the kernels are handed: plain data, checked.
#pragma once

#include <cstdint>

#include "base/operand.h"
#include "tileformer/route.h"

namespace tileformer::route_op {

inline constexpr int kMaxExperts = 1024;

// Added to the sum of sigmoid scores before they are divided by it, so that scores of 0 stay 0.
inline constexpr double kSigmoidFloor = 1e-20;

// A tensor [tokens, k]; strides in elements. data null: absent.
template <class T>
struct Slots {
  T* data;
  std::int64_t token, slot;
  T& operator()(std::int64_t t, std::int64_t j) const { return data[t * token + j * slot]; }
};

struct Rows {
  void* data;  // [tokens, experts], unit stride in the last dimension
  std::int64_t stride;
};

struct RouteKernelArgs {
  Rows logits;
  DType dtype;
  std::int64_t tokens;
  int experts, k;
  const float* bias;  // [kMaxExperts], -inf beyond experts. Null: experts are compared by logits
  RouteScoring scoring;
  int num_groups, top_groups;
  bool renormalize;
  float scale;
  Slots<float> weights;
  Slots<std::int32_t> chosen;

  std::int64_t tokens_per_item;
  std::int64_t* next_token;  // shared by all workers; starts at 0
};

struct RouteBackwardKernelArgs {
  Rows logits, grad_logits;
  DType dtype;
  std::int64_t tokens;
  int experts, k;
  RouteScoring scoring;
  bool renormalize;
  float scale;
  Slots<const std::int32_t> kept, chosen;  // -1 in kept: dropped
  Slots<const float> grad_weights;

  std::int64_t tokens_per_item;
  std::int64_t* next_token;
};

// The compiled kernels of a unit: they take tokens until none is left.
struct Unit {
  const char* name;  // "avx2_fma"
  void (*run)(const RouteKernelArgs&);
};
struct BackwardUnit {
  const char* name;
  void (*run)(const RouteBackwardKernelArgs&);
};

}  // namespace tileformer::route_op
