"""pandas: groupby and sum, without the sort of the groups."""

from __future__ import annotations

import pandas as pd

from contestants import Contestant, Data, sparse


def contestants(data: Data, threads: int) -> list[Contestant]:
    del threads  # it has one
    keys = pd.Series(data.keys64)
    values = pd.Series(data.flat) if data.row_width == 1 else pd.DataFrame(data.values)
    return [
        sparse(
            "pandas groupby",
            1,
            lambda: values.groupby(keys, sort=False).sum(),
            lambda sums: (sums.index.to_numpy(), sums.to_numpy()),
        )
    ]
