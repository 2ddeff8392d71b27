#include "ops/moe/experts/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                                    \
  namespace unit {                                          \
  extern const moe::Unit experts_unit;                      \
  extern const moe::BackwardKernel experts_backward_kernel; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace moe {
namespace {

#define TF_ADDRESS(unit) &unit::experts_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
#define TF_BACKWARD_ADDRESS(unit) &unit::experts_backward_kernel,
const BackwardKernel* const kBackwardKernels[] = {TF_FOR_EACH_UNIT(TF_BACKWARD_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

const BackwardKernel& backward_kernel_of(const Unit& unit) {
  std::size_t i = 0;
  while (kUnits[i] != &unit) ++i;
  return *kBackwardKernels[i];
}

}  // namespace moe
}  // namespace tileformer
