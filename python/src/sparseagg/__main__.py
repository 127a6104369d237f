"""``python -m sparseagg`` is the command ``sparseagg``."""

import sys

from sparseagg.cli import main

if __name__ == "__main__":
    sys.exit(main())
