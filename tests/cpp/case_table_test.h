// Tests that go through the case table: at the end the errors over all of it are compared.
#pragma once

#include <gtest/gtest.h>

#include "attention_accuracy.h"
#include "case_params.h"

namespace tileformer::test {

class CaseTableTest : public testing::TestWithParam<CaseAndDType> {
 protected:
  static TableErrors& table_errors() {
    static TableErrors errors;
    return errors;
  }
  static void TearDownTestSuite() { EXPECT_EQ(table_errors().failure(), ""); }
};

}  // namespace tileformer::test
