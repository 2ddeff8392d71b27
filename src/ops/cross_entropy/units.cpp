#include "ops/cross_entropy/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                                  \
  namespace unit {                                        \
  extern const cross_entropy_op::Unit cross_entropy_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace cross_entropy_op {
namespace {

#define TF_ADDRESS(unit) &unit::cross_entropy_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

}  // namespace cross_entropy_op
}  // namespace tileformer
