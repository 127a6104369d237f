"""Tests of sparseagg.nvflare in real NVFlare; scripts/test_integrations.py makes their environment."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
