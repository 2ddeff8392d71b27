#include "ops/moe/experts/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)               \
  namespace unit {                     \
  extern const moe::Unit experts_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace moe {
namespace {

#define TF_ADDRESS(unit) &unit::experts_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

}  // namespace moe
}  // namespace tileformer
