"""``python -m sparseagg`` is the command ``sparseagg``."""

import sys

from sparseagg._internal.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
