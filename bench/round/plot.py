"""The picture of the benchmark of whole rounds: a bar for each contestant and case, made of the stages."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import picture

STAGES = {"create": picture.OTHER, "submit": picture.OURS, "merge": picture.PEER, "read": "#7fb069"}


def draw(results: dict[str, Any], out: pathlib.Path) -> None:
    """Draws all cases side by side."""
    lines = [line for line in results["rounds"] if "absent" not in line]
    cases = list(dict.fromkeys(line["case"] for line in lines))
    names = list(dict.fromkeys(line["name"] for line in lines))[::-1]
    figure, every_axes = picture.new(1, len(cases), size=(3.0 * len(cases), 2.8), squeeze=False, sharey=True)
    for axes, case in zip(every_axes[0], cases):
        of_case = {line["name"]: line for line in lines if line["case"] == case}
        ends = [0.0] * len(names)
        for stage, colour in STAGES.items():
            seconds = [of_case[name][stage] if name in of_case else 0.0 for name in names]
            axes.barh(names, seconds, left=ends, color=colour, label=stage)
            ends = [end + more for end, more in zip(ends, seconds)]
        for row, name in enumerate(names):
            text = f" {of_case[name]['total']:.3g}" if name in of_case else " left out"
            axes.text(ends[row], row, text, va="center", fontsize=8)
        axes.set_title(case)
        axes.set_xlabel("seconds of a round")
        axes.set_xlim(0, 1.2 * max(ends))
        picture.style(axes)
    every_axes[0][-1].legend(frameon=False, fontsize=8)
    picture.save(figure, out)


if __name__ == "__main__":
    sys.exit(picture.main(draw, __doc__))
