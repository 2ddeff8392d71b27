#include "ops/moe/grouped_matmul/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                               \
  namespace unit {                                     \
  extern const moe::grouped::Unit grouped_matmul_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace moe::grouped {
namespace {

#define TF_ADDRESS(unit) &unit::grouped_matmul_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

}  // namespace moe::grouped
}  // namespace tileformer
