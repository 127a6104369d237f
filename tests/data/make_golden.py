"""Writes tests/data/golden.json; --check only says whether it is up to date. Needs the sparseagg package."""

from __future__ import annotations

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))  # the reference

import golden

if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if golden.PATH.read_text(encoding="utf-8") != golden.text():
            sys.exit("golden.json is not what make_golden.py writes")
    else:
        golden.PATH.write_text(golden.text(), encoding="utf-8")
