"""The most memory that this process held at any time."""

from pathlib import Path


def peak_rss_mib() -> float:
    """Linux's high-water mark of resident memory.

    Not getrusage's: a child process inherits that one from the process that started it.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
