#include "tileformer/isa.h"

#include <atomic>
#include <cstdlib>

#include "base/cpu_features.h"

namespace tileformer {
namespace {

// An ISA is compiled in when every unit that it uses is; cmake/isa.cmake defines TILEFORMER_HAVE_<UNIT> for
// those.
#if defined(TILEFORMER_HAVE_AMX_BF16) && defined(TILEFORMER_HAVE_AVX512_FMA)
constexpr bool kCompiledAmx = true;
#else
constexpr bool kCompiledAmx = false;
#endif
#if defined(TILEFORMER_HAVE_AVX512_BF16) && defined(TILEFORMER_HAVE_AVX512_FMA)
constexpr bool kCompiledAvx512Bf16 = true;
#else
constexpr bool kCompiledAvx512Bf16 = false;
#endif
#if defined(TILEFORMER_HAVE_AVX512_FMA)
constexpr bool kCompiledAvx512 = true;
#else
constexpr bool kCompiledAvx512 = false;
#endif
#if defined(TILEFORMER_HAVE_AVX2_FMA)
constexpr bool kCompiledAvx2 = true;
#else
constexpr bool kCompiledAvx2 = false;
#endif
#if defined(TILEFORMER_HAVE_NEON_FMA)
constexpr bool kCompiledNeon = true;
#else
constexpr bool kCompiledNeon = false;
#endif

struct IsaRow {
  Isa isa;
  const char* name;
  bool compiled;
  bool (*granted)(const CpuFeatures&);
};

constexpr IsaRow kTable[] = {
    {Isa::amx, "amx", kCompiledAmx, [](const CpuFeatures& f) { return f.amx_bf16; }},
    {Isa::avx512_bf16, "avx512_bf16", kCompiledAvx512Bf16,
     [](const CpuFeatures& f) { return f.avx512_bf16; }},
    {Isa::avx512, "avx512", kCompiledAvx512, [](const CpuFeatures& f) { return f.avx512; }},
    {Isa::avx2, "avx2", kCompiledAvx2, [](const CpuFeatures& f) { return f.avx2_fma; }},
    {Isa::neon, "neon", kCompiledNeon, [](const CpuFeatures& f) { return f.neon; }},
    {Isa::portable, "portable", true, [](const CpuFeatures&) { return true; }},
};

bool is_supported(const IsaRow& row) { return row.compiled && row.granted(cpu_features()); }

std::string supported_names() {
  std::string names;
  for (Isa isa : supported_isas()) names += (names.empty() ? "" : ", ") + std::string(name_of(isa));
  return names;
}

// `source` is what the message calls the argument: the environment variable or the parameter.
Status find_supported(const char* source, const std::string& name, Isa* isa) {
  for (const IsaRow& row : kTable) {
    if (name != row.name) continue;
    if (is_supported(row)) {
      *isa = row.isa;
      return Status::ok();
    }
    const char* why =
        row.compiled ? " is not supported by this machine" : " is not compiled into this binary";
    return Status::unsupported(std::string(source) + ": \"" + name + "\"" + why +
                               "; supported here: " + supported_names());
  }
  return Status::invalid(std::string(source) + ": \"" + name +
                         "\" is not a known ISA; supported here: " + supported_names());
}

struct Choice {
  Status status;
  Isa isa = Isa::portable;
};

// TILEFORMER_ISA is read once, so that the answer cannot change between plan and run.
const Choice& default_choice() {
  static const Choice choice = [] {
    Choice c;
    const char* name = std::getenv("TILEFORMER_ISA");
    if (name != nullptr && *name != '\0') {
      c.status = find_supported("TILEFORMER_ISA", name, &c.isa);
    } else {
      c.isa = supported_isas().front();
    }
    return c;
  }();
  return choice;
}

constexpr int kNotForced = -1;
std::atomic<int> forced{kNotForced};

}  // namespace

const char* name_of(Isa isa) {
  for (const IsaRow& row : kTable) {
    if (row.isa == isa) return row.name;
  }
  return "?";
}

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> v;
    for (const IsaRow& row : kTable) {
      if (is_supported(row)) v.push_back(row.isa);
    }
    return v;
  }();
  return isas;
}

const std::vector<Isa>& compiled_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> v;
    for (const IsaRow& row : kTable) {
      if (row.compiled) v.push_back(row.isa);
    }
    return v;
  }();
  return isas;
}

Status active_isa(Isa* isa) {
  const int chosen = forced.load(std::memory_order_relaxed);
  if (chosen != kNotForced) {
    *isa = static_cast<Isa>(chosen);
    return Status::ok();
  }
  const Choice& choice = default_choice();
  *isa = choice.isa;
  return choice.status;
}

Status force_isa(const std::string& name) {
  if (name.empty()) {
    forced.store(kNotForced, std::memory_order_relaxed);
    return Status::ok();
  }
  Isa isa;
  Status status = find_supported("name", name, &isa);
  if (status) forced.store(static_cast<int>(isa), std::memory_order_relaxed);
  return status;
}

}  // namespace tileformer
