#include "ops/merge_attention/units.h"

#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)                                   \
  namespace unit {                                         \
  extern const merge_attention::Unit merge_attention_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace merge_attention {
namespace {

#define TF_ADDRESS(unit) &unit::merge_attention_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<Unit> kTable(kUnits);

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

}  // namespace merge_attention
}  // namespace tileformer
