#include "ops/attention/units.h"

#include <cstring>

#include "tile/compiled_units.h"
#include "tile/unit_names.h"

namespace tileformer {

#define TF_DECLARE(unit)                                            \
  namespace unit {                                                  \
  extern const attention::Unit attention_unit;                      \
  extern const attention::DecodeKernel attention_decode_kernel;     \
  extern const attention::BackwardKernel attention_backward_kernel; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace attention {
namespace {

#define TF_ADDRESS(unit) &unit::attention_unit,
const Unit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};

#define TF_DECODE_ADDRESS(unit) &unit::attention_decode_kernel,
const DecodeKernel* const kDecodeKernels[] = {TF_FOR_EACH_UNIT(TF_DECODE_ADDRESS)};

#define TF_BACKWARD_ADDRESS(unit) &unit::attention_backward_kernel,
const BackwardKernel* const kBackwardKernels[] = {TF_FOR_EACH_UNIT(TF_BACKWARD_ADDRESS)};

thread_local const Unit* forced = nullptr;

std::size_t index_of(const Unit& unit) {
  std::size_t i = 0;
  while (kUnits[i] != &unit) ++i;
  return i;
}

}  // namespace

const Unit* find_unit(const char* name) {
  for (const Unit* unit : kUnits)
    if (std::strcmp(unit->name, name) == 0) return unit;
  return nullptr;
}

const Unit* find_unit(Isa isa, DType dtype) { return find_unit(unit_name(isa, dtype)); }

const DecodeKernel& decode_kernel_of(const Unit& unit) { return *kDecodeKernels[index_of(unit)]; }
const BackwardKernel& backward_kernel_of(const Unit& unit) { return *kBackwardKernels[index_of(unit)]; }

void force_unit(const Unit* unit) { forced = unit; }
const Unit* forced_unit() { return forced; }

}  // namespace attention
}  // namespace tileformer
