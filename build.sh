#!/usr/bin/env bash
# One entry to everything. Each command first builds what is out of date.
#
#   bash build.sh                      build and install into .venv, then a one-line proof that it works
#   bash build.sh generate "prompt"    a real model answers (--help for its options)
#   bash build.sh serve-bench          many prompts at once, and how fast (--help for its options)
#   bash build.sh train                trains a model on text (--help for its options)
#   bash build.sh test [part]          every test; part: quick, or one of the steps that `test --list` names
#   bash build.sh bench [names]        benchmarks against the peers that are installed
#   bash build.sh format               clang-format and ruff over the tree
#
# PYTHON names the interpreter for .venv (default python3), JOBS the number of parallel compilers (default: all cores).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

venv=$PWD/.venv
python=$venv/bin/python
export PATH=$venv/bin:$PATH
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() {
  printf 'build.sh: %s\n' "$*" >&2
  exit 1
}

# Installs Debian packages, or says which to install.
debian_packages() {
  [ $# -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $*"
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$@" >/dev/null && return 0
  fi
  fail "missing: $*; install with: apt-get install $*"
}

require_build_tools() {
  local base=${PYTHON:-python3} missing=()
  command -v "${CXX:-c++}" >/dev/null || missing+=(g++)
  if ! command -v "$base" >/dev/null; then
    missing+=(python3 python3-venv python3-dev)
  else
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$base is too old: Python >= 3.11 is needed"
    "$base" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    "$base" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
      missing+=(python3-dev)
  fi
  debian_packages "${missing[@]}"
}

require_test_tools() {
  local missing=()
  [ -e /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
  # AVX-512 intrinsics in terms of AVX2, for CPUs without AVX-512.
  [ "$(uname -m)" != x86_64 ] || [ -e /usr/include/simde/x86/avx512.h ] || missing+=(libsimde-dev)
  command -v objdump >/dev/null || missing+=(binutils)
  debian_packages "${missing[@]}"
}

# The packages of an extra in pyproject.toml, one a line.
requirements() {
  "$python" - "$1" <<'EOF'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
EOF
}

# Names and contents of all files below the given paths, as one checksum.
checksum() { find "$@" -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum; }

# Runs a command unless it already ran with the same inputs: up_to_date_or STAMP INPUTS COMMAND...
up_to_date_or() {
  local stamp=$venv/$1.stamp inputs=$2
  shift 2
  if [ "$(cat "$stamp" 2>/dev/null)" != "$inputs" ]; then
    "$@"
    printf '%s\n' "$inputs" >"$stamp"
  fi
}

install_requirements() {
  say "installing the Python packages"
  # torch first and alone: for x86-64 the default wheel of some indexes brings CUDA. It works, but is ten times the size;
  # with PyTorch's CPU index in PIP_EXTRA_INDEX_URL pip takes the CPU wheel.
  requirements dev | grep '^torch==' | xargs "$python" -m pip install -qq
  requirements dev | xargs "$python" -m pip install -qq
  requirements model | xargs "$python" -m pip install -qq --no-deps
}

install_tileformer() {
  say "building and installing tileformer"
  "$python" -m pip install -qq --no-build-isolation --no-deps --force-reinstall .
}

build() {
  if [ ! -x "$python" ]; then
    require_build_tools
    "${PYTHON:-python3}" -m venv "$venv"
  fi
  up_to_date_or requirements "$(requirements dev)$(requirements model)" install_requirements
  local inputs
  inputs=$(checksum CMakeLists.txt cmake include src python pyproject.toml)
  if [ "$(cat "$venv/tileformer.stamp" 2>/dev/null)" != "$inputs" ]; then require_build_tools; fi
  up_to_date_or tileformer "$inputs" install_tileformer
}

# One attention through the installed package, against fp64.
proof() {
  "$python" - <<'EOF'
import torch, tileformer
torch.manual_seed(0)
q, k, v = (torch.randn(1, 4, 256, 64, dtype=torch.bfloat16) for _ in range(3))
out = tileformer.flash_attention(q, k, v, causal=True)
exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
error = ((out - exact).norm() / exact.norm()).item()
assert error < 1e-2, f"attention is off by {error}"
print(f"tileformer {tileformer.__version__} works: ISA {tileformer.isa()}, "
      f"bf16 causal attention within {error:.1e} of fp64")
EOF
}

case ${1-} in
  "")
    build
    proof
    ;;
  generate)
    build
    shift
    exec "$python" -m tileformer generate "$@"
    ;;
  serve-bench)
    build
    shift
    exec "$python" -m tileformer serve-bench "$@"
    ;;
  train)
    build
    shift
    exec "$python" -m tileformer train "$@"
    ;;
  bench)
    build
    shift
    exec "$python" bench/run.py "$@"
    ;;
  test)
    build
    require_test_tools
    shift
    exec bash tests/run.sh "$@"
    ;;
  format)
    build
    git ls-files -co --exclude-standard '*.h' '*.cpp' | xargs clang-format -i
    ruff check --fix -q . || true
    ;;
  *)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    fail "unknown command: $1"
    ;;
esac
