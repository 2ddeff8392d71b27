#include "ops/kv_cache/units.h"

#include <cstring>

#include "tile/compiled_units.h"
#include "tile/unit_names.h"

namespace tileformer {

#define TF_DECLARE(unit)                      \
  namespace unit {                            \
  extern const kv_cache::Unit kv_append_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace kv_cache {
namespace {

#define TF_ADDRESS(unit) &unit::kv_append_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};

thread_local const Unit* forced = nullptr;
thread_local Stream streaming = Stream::by_size;

}  // namespace

const Unit* find_unit(const char* name) {
  for (const Unit* unit : kUnits)
    if (std::strcmp(unit->name, name) == 0) return unit;
  return nullptr;
}

const Unit* find_unit(Isa isa, DType dtype) { return find_unit(unit_name(isa, dtype)); }

void force_unit(const Unit* unit) { forced = unit; }
const Unit* forced_unit() { return forced; }

void force_stream(Stream stream) { streaming = stream; }
Stream forced_stream() { return streaming; }

}  // namespace kv_cache
}  // namespace tileformer
