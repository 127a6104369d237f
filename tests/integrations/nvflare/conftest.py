"""Tests of sparseagg.nvflare in real NVFlare; `make test-integrations` makes their environment."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(TESTS / "python"), str(TESTS / "support")]  # helpers of the tests of the client
