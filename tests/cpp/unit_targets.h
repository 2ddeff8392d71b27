// Every unit of an operator that this machine can run, natively or emulated.
#pragma once

#include <string>
#include <vector>

#include "ops/unit_table.h"

namespace tileformer::test {

// An ISA by its name, or a unit that exists for tests only.
template <class Unit>
struct UnitTarget {
  std::string name;
  const Unit* test_unit = nullptr;
};

template <class Unit>
std::vector<UnitTarget<Unit>> unit_targets(const UnitTable<Unit>& units) {
  std::vector<UnitTarget<Unit>> found;
  for (Isa isa : supported_isas()) found.push_back({name_of(isa)});
  for (const char* name : {"amx_emulated", "avx512_fma_simde", "avx512_bf16_simde"})
    if (const Unit* unit = units.find(name)) found.push_back({name, unit});
  return found;
}

// While it lives, calls of this thread run on the target.
template <class Unit>
class ForcedUnit {
 public:
  explicit ForcedUnit(const UnitTarget<Unit>& target)
      : status_(force_isa(target.test_unit ? "" : target.name)) {
    UnitTable<Unit>::force(target.test_unit);
  }
  ~ForcedUnit() {
    UnitTable<Unit>::force(nullptr);
    status_ = force_isa("");
  }
  ForcedUnit(const ForcedUnit&) = delete;
  ForcedUnit& operator=(const ForcedUnit&) = delete;
  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace tileformer::test
