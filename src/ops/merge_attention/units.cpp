#include "ops/merge_attention/units.h"

#include <cstring>

#include "tile/compiled_units.h"
#include "tile/unit_names.h"

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

thread_local const Unit* forced = nullptr;

}  // namespace

const Unit* find_unit(const char* name) {
  for (const Unit* unit : kUnits)
    if (std::strcmp(unit->name, name) == 0) return unit;
  return nullptr;
}

const Unit* find_unit(Isa isa) { return find_unit(unit_name(isa, DType::f32)); }

void force_unit(const Unit* unit) { forced = unit; }
const Unit* forced_unit() { return forced; }

}  // namespace merge_attention
}  // namespace tileformer
