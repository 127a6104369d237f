"""Tests of sparseagg.nvflare in real NVFlare; scripts/test_integrations.py makes their environment."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))  # helpers of the tests of the client
