#include "ops/moe/permute/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                      \
  namespace unit {                            \
  extern const permute_op::Unit permute_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace permute_op {
namespace {

#define TF_ADDRESS(unit) &unit::permute_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

}  // namespace permute_op
}  // namespace tileformer
