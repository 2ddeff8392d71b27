// Cases as parameters of tests, each in several dtypes.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "ops/attention/cases.h"

namespace tileformer::test {

using CaseAndDType = std::tuple<attention::AttentionCase, DType>;

inline auto in_every_dtype(const std::vector<attention::AttentionCase>& cases) {
  return testing::Combine(testing::ValuesIn(cases), testing::Values(DType::f32, DType::f16, DType::bf16));
}

inline std::string name_of_case(const testing::TestParamInfo<attention::AttentionCase>& info) {
  return info.param.name;
}
inline std::string name_of_case_and_dtype(const testing::TestParamInfo<CaseAndDType>& info) {
  return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
}

}  // namespace tileformer::test
