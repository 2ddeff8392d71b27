"""``python -m tileformer``: the same command line as the installed ``tileformer``."""

import sys

from tileformer.cli import main

sys.exit(main())
