#include "base/describe.h"

#include <gtest/gtest.h>

namespace tileformer {
namespace {

TEST(Describe, NamesDtypeAndShape) {
  float x = 0;
  EXPECT_EQ(describe(TensorView::dense(&x, DType::bf16, {1, 8, 16, 64})), "bfloat16 [1, 8, 16, 64]");
  EXPECT_EQ(describe_shape(TensorView::dense(&x, DType::f32, {})), "[]");
  EXPECT_EQ(describe(TensorView()), "none");
}

}  // namespace
}  // namespace tileformer
