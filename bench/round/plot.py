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
    figure, every_axes = picture.new(1, len(cases), size=(3.2 * len(cases), 3.8), squeeze=False)
    for axes, case in zip(every_axes[0], cases):
        of_case = [line for line in lines if line["case"] == case]
        bottoms = [0.0] * len(of_case)
        for stage, colour in STAGES.items():
            heights = [line[stage] for line in of_case]
            axes.bar([line["name"] for line in of_case], heights, bottom=bottoms, color=colour, label=stage)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
        axes.set_title(case)
        axes.tick_params(axis="x", rotation=25)
        picture.style(axes)
    every_axes[0][0].set_ylabel("seconds of a round")
    every_axes[0][0].legend(frameon=False)
    picture.save(figure, out)


if __name__ == "__main__":
    sys.exit(picture.main(draw, __doc__))
