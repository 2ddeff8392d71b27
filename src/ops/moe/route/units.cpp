#include "ops/moe/route/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                                   \
  namespace unit {                                         \
  extern const route_op::Unit route_unit;                  \
  extern const route_op::BackwardUnit route_backward_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace route_op {
namespace {

#define TF_ADDRESS(unit) &unit::route_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

#define TF_BACKWARD_ADDRESS(unit) &unit::route_backward_unit,
const BackwardUnit* const kBackwardUnits[] = {TF_FOR_EACH_UNIT(TF_BACKWARD_ADDRESS)};
constexpr UnitTable<BackwardUnit> kBackwardTable(kBackwardUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }
const UnitTable<BackwardUnit>& backward_units() { return kBackwardTable; }

}  // namespace route_op
}  // namespace tileformer
