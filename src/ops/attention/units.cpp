#include "ops/attention/unit_table.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                                            \
  namespace unit {                                                  \
  extern const attention::Unit attention_unit;                      \
  extern const attention::DecodeKernel attention_decode_kernel;     \
  extern const attention::BackwardKernel attention_backward_kernel; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace attention {
namespace {

#define TF_ADDRESS(unit) &unit::attention_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};

#define TF_DECODE_ADDRESS(unit) &unit::attention_decode_kernel,
const DecodeKernel* const kDecodeKernels[] = {TF_FOR_EACH_UNIT(TF_DECODE_ADDRESS)};

#define TF_BACKWARD_ADDRESS(unit) &unit::attention_backward_kernel,
const BackwardKernel* const kBackwardKernels[] = {TF_FOR_EACH_UNIT(TF_BACKWARD_ADDRESS)};

constexpr UnitTable<Unit> kTable(kUnits);

std::size_t index_of(const Unit& unit) {
  std::size_t i = 0;
  while (kUnits[i] != &unit) ++i;
  return i;
}

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

const DecodeKernel& decode_kernel_of(const Unit& unit) { return *kDecodeKernels[index_of(unit)]; }
const BackwardKernel& backward_kernel_of(const Unit& unit) { return *kBackwardKernels[index_of(unit)]; }

}  // namespace attention
}  // namespace tileformer
