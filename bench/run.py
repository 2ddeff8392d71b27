"""`python bench/run.py ...`, from any folder: the same as `python -m bench` in the repository."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.cli import main  # noqa: E402  (the package is importable from here on only)

sys.exit(main())
