// An operator's kernels, one for each unit of this build, and which of them a call runs on. A Unit has the
// name of its unit.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "tile/unit_names.h"
#include "tileformer/dtype.h"
#include "tileformer/isa.h"
#include "tileformer/status.h"

namespace tileformer {

template <class Unit>
class UnitTable {
 public:
  explicit constexpr UnitTable(std::span<const Unit* const> units) : units_(units) {}

  // By name, also those that are compiled for tests only. Null: not compiled.
  const Unit* find(const char* name) const {
    for (const Unit* unit : units_)
      if (std::strcmp(unit->name, name) == 0) return unit;
    return nullptr;
  }

  // The unit that computes dtype on the ISA. Null if it is not compiled in.
  const Unit* find(Isa isa, DType dtype) const { return find(unit_name(isa, dtype)); }

  // The unit of a call: that of the active ISA, or the one that a test forces.
  Status choose(DType dtype, const Unit** unit) const {
    Isa isa;
    if (Status s = active_isa(&isa); !s) return s;
    *unit = forced_ ? forced_ : find(isa, dtype);
    if (*unit) return Status::ok();
    return Status::unsupported(std::string("no kernel of this operator for ISA ") + name_of(isa));
  }

  // For tests: every following call of this thread runs on the unit (null: as usual).
  static void force(const Unit* unit) { forced_ = unit; }
  static const Unit* forced() { return forced_; }

 private:
  std::span<const Unit* const> units_;
  static inline thread_local const Unit* forced_ = nullptr;
};

}  // namespace tileformer
