"""The layers of the source tree, checked on its #include lines.

    includes.py ROOT

    python/csrc, examples -> include -> ops -> tile -> base: a layer includes itself, what is below, and
    include/. Only python/csrc includes torch and Python. Intrinsics and the macros of instruction sets stand
    under src/tile and in cpu_features only. A kernel source includes no std containers, algorithms or maths.

Exit status 1 and one line per finding; the number of files otherwise.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
INTRINSIC = re.compile(
    r"\b_mm\d*_\w+|\b_tile_\w+|\b__m(?:128|256|512)\w*|\b__builtin_ia32_\w+|\bv\w+q_[fsu](?:16|32)\b"
    r"|\b__(?:AVX|AMX|FMA|F16C|ARM_NEON|ARM_FEATURE)\w*|\b(?:immintrin|x86intrin|arm_neon|cpuid)\.h\b"
)
TORCH = ("torch/", "ATen/", "c10/", "Python.h")

# Which of base/, tile/, ops/ and tileformer/ a file may include, by the folder that it stands in.
ALLOWED = {
    "include": {"tileformer"},
    "src/base": {"tileformer", "base"},
    "src/tile": {"tileformer", "base", "tile"},
    "src/ops": {"tileformer", "base", "tile", "ops"},
    "python/csrc": {"tileformer"},
    "examples": {"tileformer"},
}
LAYERS = {"tileformer", "base", "tile", "ops"}
KERNEL_STD = {"cstddef", "cstdint", "cstring", "cfloat", "limits", "type_traits", "utility"}


def folder_of(path: str) -> str | None:
    return next((folder for folder in ALLOWED if path.startswith(folder + "/")), None)


def check(path: str, text: str) -> list[str]:
    """Findings of one file; path relative to the root."""
    findings = []
    folder = folder_of(path)
    is_test = path.endswith("_test.cpp") or path.startswith("tests/")
    may_use_intrinsics = path.startswith("src/tile/") or path.startswith("src/base/cpu_features")
    is_kernel = path.endswith(".kernel.cpp") or path.startswith("src/tile/")
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if not may_use_intrinsics and (word := INTRINSIC.search(line.split("//")[0])):
            findings.append(f"{where}: {word.group()} outside src/tile and cpu_features")
        if not (match := INCLUDE.match(line)):
            continue
        target = match.group(1)
        layer = target.split("/")[0]
        if target.startswith(TORCH) and folder != "python/csrc":
            findings.append(f"{where}: {target} outside python/csrc")
        if folder and not is_test and layer in LAYERS and layer not in ALLOWED[folder]:
            findings.append(f"{where}: {folder} must not include {target}")
        if is_kernel and "." not in target and "/" not in target and target not in KERNEL_STD:
            findings.append(f"{where}: <{target}> in kernel code")
    return findings


def main(root: Path) -> int:
    files = [
        path
        for folder in ("include", "src", "python/csrc", "tests", "examples")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in {".h", ".cpp"}
    ]
    findings = [f for path in files for f in check(path.relative_to(root).as_posix(), path.read_text())]
    if not files:
        findings.append(f"{root}: no sources")
    print("\n".join(findings) or f"{len(files)} files: layers kept")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
