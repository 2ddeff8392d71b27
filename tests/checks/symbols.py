"""What a kernel object must not leak, and what a baseline object must not contain.

A kernel is compiled for a wide instruction set. What it defines outside its own namespace (a weak std:: or
inline function above all) may be the copy that the linker keeps for the whole program, and then a CPU
without those instructions dies in innocent code. And an object that is not a kernel must run on the
baseline of the architecture.

    symbols.py OBJECT...   objects named <kernel>.<unit>.cpp.o under kernels/ are kernels, all others baseline

Exit status 1 and one line per finding; the number of objects otherwise.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Units whose flags are the baseline's.
BASELINE_UNITS = {"portable_fma", "amx_emulated", "neon_fma"}
WIDE_X86 = re.compile(r"\t(v\w+|\{?evex\}?|t(?:ileload|dp|ilezero|ilestore)\w*)\s.*%(?:[xyz]mm|k\d|tmm)")


def unit_of(path: Path) -> str | None:
    """The unit of a kernel object, None for any other object."""
    match = re.fullmatch(r"\w+\.(\w+)\.cpp\.o", path.name)
    return match.group(1) if match and path.parent.name == "kernels" else None


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def leaked_symbols(path: Path, unit: str) -> list[str]:
    """Symbols that other objects can see and whose name does not contain the unit's namespace."""
    namespace = f"{len(unit)}{unit}"
    leaked = []
    for line in run("nm", "--defined-only", "--extern-only", str(path)).splitlines():
        kind, name = line.split()[-2:]
        if namespace not in name:
            plain = run("c++filt", name).strip()
            leaked.append(f"{path.name}: defines {plain} ({kind}) outside namespace {unit}")
    return leaked


def wide_instructions(path: Path) -> list[str]:
    """The first instruction, if any, that the x86-64 baseline lacks."""
    for line in run("objdump", "-d", "--no-show-raw-insn", str(path)).splitlines():
        if WIDE_X86.search(line):
            return [f"{path.name}: baseline code contains {' '.join(line.split()[1:])}"]
    return []


def main(arguments: list[str]) -> int:
    objects = [Path(a) for a in arguments]
    findings: list[str] = []
    kernels = 0
    for path in objects:
        unit = unit_of(path)
        kernels += unit is not None
        if unit is not None:
            findings += leaked_symbols(path, unit)
        if unit is None or unit in BASELINE_UNITS:
            findings += wide_instructions(path)
    counts = f"{len(objects)} objects, {kernels} kernels among them"
    if not kernels:
        findings.append(f"{counts}: nothing to check, wrong arguments?")
    print("\n".join(findings) or f"{counts}: no leak, no wide instruction in the baseline")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
