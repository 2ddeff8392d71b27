"""The checks find what they are there to find."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import includes
import pytest
import symbols


@pytest.mark.parametrize(
    ("path", "line", "finding"),
    [
        ("src/base/executor.cpp", "#include <immintrin.h>", "immintrin.h outside"),
        ("src/ops/gemm/plan.cpp", "__m256 x = _mm256_setzero_ps();", "outside src/tile"),
        ("src/ops/gemm/plan.cpp", "#if defined(__AVX2__)", "__AVX2__ outside"),
        ("src/base/status.cpp", '#include "tile/pack.h"', "src/base must not include tile/pack.h"),
        ("src/tile/pack.h", '#include "ops/gemm/plan.h"', "src/tile must not include"),
        ("include/tileformer/isa.h", '#include "base/scalar.h"', "include must not include"),
        ("python/csrc/module.cpp", '#include "base/scalar.h"', "python/csrc must not include"),
        ("src/ops/gemm/plan.cpp", "#include <torch/csrc/stable/library.h>", "outside python/csrc"),
        ("src/ops/gemm/gemm.kernel.cpp", "#include <algorithm>", "<algorithm> in kernel code"),
    ],
)
def test_includes_reports(path: str, line: str, finding: str) -> None:
    (only,) = includes.check(path, "#pragma once\n" + line)
    assert finding in only and only.startswith(f"{path}:2:")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("src/tile/vec_avx2.h", "#include <immintrin.h>"),
        ("src/base/cpu_features.cpp", "#include <cpuid.h>"),
        ("src/ops/gemm/gemm.kernel.cpp", '#include "tile/pack.h"'),
        ("src/ops/gemm/plan.cpp", "#include <algorithm>  // _mm256_add_ps stays in a comment"),
        ("python/csrc/module.cpp", "#include <torch/csrc/stable/library.h>"),
        ("src/ops/gemm/gemm_test.cpp", '#include "base/scalar.h"'),
    ],
)
def test_includes_allows(path: str, line: str) -> None:
    assert includes.check(path, line) == []


def compile_object(path: Path, source: str, *flags: str) -> str:
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler, "a C++ compiler built this project"
    path.parent.mkdir(exist_ok=True)
    command = [compiler, "-x", "c++", "-std=c++20", "-O2", *flags, "-c", "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return str(path)


CLEAN_KERNEL = "namespace tileformer::wide { template <class T> T f(T x) { return x; } template int f(int); }"
LEAKING_KERNEL = CLEAN_KERNEL + "inline int shared(int x) { return x; } auto* keep = &shared;"


def test_symbols_reports_what_a_kernel_defines_outside_its_namespace(tmp_path: Path, capsys) -> None:
    clean = compile_object(tmp_path / "kernels" / "op.wide.cpp.o", CLEAN_KERNEL)
    assert symbols.main([clean]) == 0
    leaking = compile_object(tmp_path / "kernels" / "op2.wide.cpp.o", LEAKING_KERNEL)
    assert symbols.main([clean, leaking]) == 1
    assert "shared(int) (W) outside namespace wide" in capsys.readouterr().out


def test_symbols_reports_wide_instructions_in_baseline_code(tmp_path: Path, capsys) -> None:
    kernel = compile_object(tmp_path / "kernels" / "op.wide.cpp.o", CLEAN_KERNEL)
    source = "void f(float* x) { for (int i = 0; i < 8; ++i) x[i] *= 2; }"
    assert symbols.main([kernel, compile_object(tmp_path / "narrow.cpp.o", source)]) == 0
    if symbols.run("uname", "-m").strip() != "x86_64":
        pytest.skip("instructions are checked on x86-64 only")
    wide = compile_object(tmp_path / "wide.cpp.o", source, "-O3", "-mavx2")
    assert symbols.main([kernel, wide]) == 1
    assert "wide.cpp.o: baseline code contains v" in capsys.readouterr().out


def test_symbols_does_not_pass_without_a_kernel(tmp_path: Path) -> None:
    assert symbols.main([]) == 1
    assert symbols.main([compile_object(tmp_path / "plain.cpp.o", "int x;")]) == 1
