#!/usr/bin/env bash
# Runs the tests, step by step; called by build.sh, which has built and installed the package into .venv before.
#
#   tests/run.sh            all steps but aarch64 and soak
#   tests/run.sh quick      release and python
#   tests/run.sh STEP...    these; --list names them
#
# A step that fails does not stop the others. The exit status is 0 if all passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
steps=(lint release python isas portable sanitize threads)
logs=build/test-logs
mkdir -p "$logs"

# Configures, builds and tests a preset of CMakePresets.json; further arguments go to ctest.
preset() {
  local name=$1
  shift
  cmake --preset "$name" >"$logs/configure-$name.log" || { cat "$logs/configure-$name.log"; return 1; }
  cmake --build --preset "$name" -- --quiet || return 1
  ctest --preset "$name" -j "$jobs" "$@" | grep -vE '^ +Start +[0-9]+:| Passed +[0-9.]+ sec$'
}

python_tests() { python -m pytest -q -n "$jobs" "$@"; }

# Best first.
supported_isas() { python -c 'from tileformer import _C; print(*_C.supported_isas())'; }

step_lint() {
  ruff check . && git ls-files -co --exclude-standard '*.h' '*.cpp' | xargs clang-format --dry-run -Werror
}

step_release() { preset release; }

# All of it on the best ISA, forced, and what depends on the choice also without.
step_python() {
  local isas status=0
  isas=$(supported_isas) || return 1
  echo "TILEFORMER_ISA=${isas%% *}"
  TILEFORMER_ISA=${isas%% *} python_tests || status=1
  python_tests tests/python/test_introspection.py || status=1
  return $status
}

# Each ISA of this machine forced. A name that did not take effect fails base_isa_test. The tests named here go through
# all ISAs by themselves; Python has run on the best one.
step_isas() {
  local isa status=0 isas
  isas=$(supported_isas) || return 1
  for isa in $isas; do
    echo "TILEFORMER_ISA=$isa"
    TILEFORMER_ISA=$isa preset release -E '^(attention|fused_experts|grouped_matmul|moe)_.*_test$' || status=1
    [ "$isa" = "${isas%% *}" ] || TILEFORMER_ISA=$isa python_tests -m "not slow" || status=1
  done
  return $status
}

step_portable() { preset portable-only; }

step_sanitize() { preset asan-ubsan; }

step_threads() { preset tsan; }

# Not part of `all`: emulated instructions are slow.
step_aarch64() {
  if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
    echo "missing: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2
    return 1
  fi
  preset aarch64
}

# Not part of `all`: for the night. Ten minutes each with AddressSanitizer and with ThreadSanitizer.
step_soak() {
  export TILEFORMER_NIGHTLY_SECONDS=${TILEFORMER_NIGHTLY_SECONDS:-600}
  preset asan-ubsan -R '^kv_cache_soak$' && preset tsan -R '^kv_cache_soak$'
}

case ${1-} in
  --list)
    echo "${steps[@]} aarch64 soak"
    exit
    ;;
  quick) steps=(release python) ;;
  "") ;;
  *) steps=("$@") ;;
esac

failed=0
summary=""
for step in "${steps[@]}"; do
  if ! declare -F "step_$step" >/dev/null; then
    echo "tests/run.sh: no step $step; there are: $(bash "$0" --list)" >&2
    exit 2
  fi
  echo "== $step"
  start=$SECONDS
  # A pipe: the summary repeats what the test runners said last.
  if "step_$step" 2>&1 | tee "$logs/$step.log"; then result=passed; else result=FAILED failed=$((failed + 1)); fi
  summary+=$(printf '%-9s %s in %d s' "$step" "$result" $((SECONDS - start)))$'\n'
  summary+=$(grep -E '^[0-9]+% tests passed|^(=+ )?[0-9]+ (passed|failed).* in ' "$logs/$step.log" | sed 's/^/          /')$'\n'
done
echo "== summary"
printf '%s' "$summary" | grep -v '^$'
echo "$((${#steps[@]} - failed)) passed, $failed failed"
[ "$failed" = 0 ]
