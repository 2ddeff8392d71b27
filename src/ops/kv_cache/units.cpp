#include "ops/kv_cache/units.h"

#include "tile/compiled_units.h"

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
constexpr UnitTable<Unit> kTable(kUnits);

thread_local Stream streaming = Stream::by_size;

}  // namespace

const UnitTable<Unit>& units() { return kTable; }

void force_stream(Stream stream) { streaming = stream; }
Stream forced_stream() { return streaming; }

}  // namespace kv_cache
}  // namespace tileformer
