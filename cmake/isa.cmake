# The one table of units and their compiler flags. A unit is what multiplies (a matrix unit, dot products, FMA); an ISA,
# as users name it, is a set of units (src/base/isa.cpp):
#
#   ISA           units
#   amx           amx_bf16, avx512_fma
#   avx512_bf16   avx512_bf16, avx512_fma
#   avx512        avx512_fma
#   avx2          avx2_fma
#   neon          neon_fma, neon_bf16 (where the CPU has it)
#   portable      portable_fma
#
# Everything outside kernels is compiled for the baseline of the architecture, so that one binary runs on every CPU.
include_guard()
include(CheckCXXCompilerFlag)
include(CheckIncludeFileCXX)

set(unit_flags_portable_fma "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(unit_flags_avx2_fma -mavx2 -mfma -mf16c)
  set(unit_flags_avx512_fma ${unit_flags_avx2_fma} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  set(unit_flags_avx512_bf16 ${unit_flags_avx512_fma} -mavx512bf16)
  set(unit_flags_amx_bf16 ${unit_flags_avx512_bf16} -mamx-tile -mamx-bf16)
  set(architecture_units amx_bf16 avx512_bf16 avx512_fma avx2_fma)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(unit_flags_neon_fma "")
  set(unit_flags_neon_bf16 -march=armv8.2-a+bf16+fp16)
  set(architecture_units neon_bf16 neon_fma)
else()
  set(architecture_units "")
endif()

# Units for tests only, to run kernels that this machine's CPU cannot: AMX tiles in plain C++, and AVX-512 by way of the
# SIMDe headers, which implement its intrinsics with AVX2. No ISA uses them.
if(TILEFORMER_TEST_UNITS)
  set(unit_flags_amx_emulated -O1)  # here as below: a quarter of -O3's time to compile
  list(APPEND architecture_units amx_emulated)
  check_include_file_cxx(simde/x86/avx512.h TILEFORMER_HAS_SIMDE)
  if(TILEFORMER_HAS_SIMDE AND avx2_fma IN_LIST architecture_units)
    set(simde_flags -O1 ${unit_flags_avx2_fma} -DTILEFORMER_USE_SIMDE=1 -DSIMDE_ENABLE_NATIVE_ALIASES=1)
    set(unit_flags_avx512_fma_simde ${simde_flags})
    set(unit_flags_avx512_bf16_simde ${simde_flags})
    list(APPEND architecture_units avx512_fma_simde avx512_bf16_simde)
  endif()
endif()

set(tileformer_units portable_fma)
foreach(unit IN LISTS architecture_units)
  if(TILEFORMER_UNITS AND NOT unit IN_LIST TILEFORMER_UNITS)
    continue()
  endif()
  if(unit_flags_${unit})
    list(JOIN unit_flags_${unit} " " flags)
    check_cxx_compiler_flag("${flags}" TILEFORMER_COMPILER_HAS_${unit})
    if(NOT TILEFORMER_COMPILER_HAS_${unit})
      continue()
    endif()
  endif()
  list(APPEND tileformer_units ${unit})
endforeach()
message(STATUS "tileformer units: ${tileformer_units}")

# Optimised in every build type: an unoptimised kernel is too slow to test. No exceptions: a kernel throws none, and
# their tables would drag in weak symbols.
# And a kernel uses some of the words of src/tile, not all.
set(kernel_flags -O3 -fno-exceptions -fno-math-errno -Wno-unused-function)
if(TILEFORMER_SANITIZE)
  list(APPEND kernel_flags -O1)  # with the checks, GCC 12 takes minutes per unit at -O2
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms in the AVX-512 intrinsics of GCC 12 (GCC bug 105593).
  list(APPEND kernel_flags -Wno-uninitialized -Wno-maybe-uninitialized)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Clang 16's VectorCombine pass crashes on the bf16 kernel, while it has little to find in code written in vectors.
  list(APPEND kernel_flags -Wno-unneeded-internal-declaration -mllvm -disable-vector-combine)
endif()

# add_isa_kernel(<target> <source> [UNITS <unit>...])
#
# Compiles the source into the target once per unit (all of this build, or those of UNITS that are in it), with the
# unit's flags and -DTILEFORMER_UNIT=<unit>. The source puts what it defines into a namespace named TILEFORMER_UNIT.
# TILEFORMER_HAVE_<UNIT>=1 tells the rest of the target which ones there are.
function(add_isa_kernel target source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "UNITS")
  if(NOT arg_UNITS)
    set(arg_UNITS ${tileformer_units})
  endif()
  get_filename_component(path ${source} ABSOLUTE)
  get_filename_component(name ${source} NAME)
  string(REPLACE ".kernel.cpp" "" name ${name})
  foreach(unit IN LISTS arg_UNITS)
    if(NOT unit IN_LIST tileformer_units)
      continue()
    endif()
    # One small file per unit: a source can be in a target only once.
    set(unit_source ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.${unit}.cpp)
    file(CONFIGURE OUTPUT ${unit_source} CONTENT "#include \"${path}\"\n" @ONLY)
    set_source_files_properties(${unit_source} PROPERTIES
      COMPILE_DEFINITIONS TILEFORMER_UNIT=${unit}
      COMPILE_OPTIONS "${kernel_flags};${unit_flags_${unit}}")
    target_sources(${target} PRIVATE ${unit_source})
    string(TOUPPER ${unit} unit_upper)
    target_compile_definitions(${target} PUBLIC $<BUILD_INTERFACE:TILEFORMER_HAVE_${unit_upper}=1>)
  endforeach()
endfunction()
