"""A workload as the peers get it, on disk between processes, and the reference that every answer is held to."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import subprocess
from typing import Any

import numpy as np

# A dense answer beyond this is no way to merge sparse updates.
MAX_DENSE_BYTES = 1 << 30


@dataclasses.dataclass
class Data:
    """All tuples of a workload, client after client, in the forms that peers like. Making them is never timed.

    Attributes:
        keys: shape (n,), as the clients have them.
        values: float32, shape (n, row_width).
        offsets: where each client's tuples begin, and n.
    """

    name: str
    num_rows: int
    row_width: int
    keys: np.ndarray
    values: np.ndarray
    offsets: np.ndarray

    @functools.cached_property
    def keys64(self) -> np.ndarray:
        """Keys as int64, which most peers want."""
        return self.keys.astype(np.int64)

    @functools.cached_property
    def keys32(self) -> np.ndarray:
        """Keys as int32, for peers that count in it; only where `narrow`."""
        return self.keys.astype(np.int32)

    @property
    def narrow(self) -> bool:
        """Whether keys fit int32."""
        return self.num_rows < 1 << 31

    @functools.cached_property
    def flat(self) -> np.ndarray:
        """Values of shape (n,) where row_width is 1, else of shape (n, row_width)."""
        return self.values.reshape(-1) if self.row_width == 1 else self.values

    def client(self, index: int) -> slice:
        """Where one client's tuples are."""
        return slice(self.offsets[index], self.offsets[index + 1])

    def separate(self, keys: Any, values: Any) -> list[tuple[Any, Any]]:
        """Splits keys and values of all, in whatever form, into views of each client's."""
        return [(keys[part], values[part]) for part in map(self.client, range(self.num_clients))]

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def one_update(self) -> bool:
        """Whether there is one update alone, whose values are those of bfloat16 also."""
        return self.name == "I"

    @property
    def has_repeats(self) -> bool:
        """Whether updates list keys several times; then values are multiples of 1/256, so that sums are exact."""
        return self.name in ("I", "L")

    def no_dense(self) -> str | None:
        """Why there is no dense answer, if so."""
        size = self.num_rows * self.row_width * 4
        return f"a dense float32 answer would take {size / 1e9:.1f} GB" if size > MAX_DENSE_BYTES else None

    def no_rows(self) -> str | None:
        """Why a peer that sums single values cannot do it, if so."""
        return f"it sums single values, and rows have {self.row_width}" if self.row_width > 1 else None


@dataclasses.dataclass
class Reference:
    """The answer: float64 sums in the order of the clients, the sums of magnitudes that bound a float32 answer's error,
    and counts."""

    keys: np.ndarray
    sums: np.ndarray
    magnitudes: np.ndarray
    counts: np.ndarray

    def error(self, keys: Any, values: Any, bits: int = 23) -> str | None:
        """Says what is wrong with a sparse answer, in any order of keys; None if nothing is.

        ``bits`` of the mantissa are those of the type that was summed in.
        """
        keys = np.asarray(keys).astype(np.uint64)
        values = np.asarray(values).reshape(len(keys), -1)
        if len(keys) != len(self.keys):
            return f"{len(keys)} keys instead of {len(self.keys)}"
        if not np.array_equal(keys, self.keys):
            order = np.argsort(keys, kind="stable")
            keys, values = keys[order], values[order]
            if not np.array_equal(keys, self.keys):
                return "other keys"
        return self._value_error(values, bits)

    def exact_error(self, keys: Any, values: Any) -> str | None:
        """Says what is wrong with the bits of a sparse answer, in ascending order of keys."""
        if not np.array_equal(np.asarray(keys).astype(np.uint64), self.keys):
            return "other keys"
        rounded = self.sums.astype(np.float32) + np.float32(0)  # a sum of zeros is +0
        return None if np.asarray(values).tobytes() == rounded.tobytes() else "other bits than the rounded float64 sums"

    def dense_error(self, values: Any, num_rows: int) -> str | None:
        """The same for a dense answer."""
        values = np.asarray(values).reshape(num_rows, -1)
        keys = self.keys.astype(np.int64)
        error = self._value_error(values[keys])
        if error is None and np.count_nonzero(values) != np.count_nonzero(values[keys]):
            error = "values at keys that nobody has"
        return error

    def _value_error(self, values: np.ndarray, bits: int = 23) -> str | None:
        # A sum of n terms, in whatever order, is within about n ulps of the magnitudes' sum.
        bound = (self.counts[:, None] + 4) * 2.0**-bits * self.magnitudes + 1e-30
        wrong = ~(np.abs(values - self.sums) <= bound)
        if not wrong.any():
            return None
        row, column = np.unravel_index(np.argmax(wrong), wrong.shape)
        return f"key {self.keys[row]}: {values[row, column]} instead of {self.sums[row, column]}"


def write(loadgen: pathlib.Path, name: str, divide_clients: int, folder: pathlib.Path) -> dict[str, Any]:
    """Writes a workload, made by the load generator, and its reference; returns what the tables need."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [loadgen, "--export", folder, "--workload", name, "--divide-clients", str(divide_clients)]
    subprocess.run(command, check=True)
    facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    keys = np.fromfile(folder / f"{name}.keys", f"u{facts['key_bytes']}")
    values = np.fromfile(folder / f"{name}.values", np.float32).reshape(len(keys), facts["row_width"])
    order = np.argsort(keys, kind="stable")
    found, groups, counts = np.unique(keys[order], return_inverse=True, return_counts=True)
    rows = values[order]
    np.save(folder / "reference_keys.npy", found.astype(np.uint64))
    np.save(folder / "reference_counts.npy", counts)
    for what, terms in (("sums", rows), ("magnitudes", np.abs(rows))):
        # bincount adds in float64, one term after the other.
        np.save(folder / f"reference_{what}.npy", np.column_stack([np.bincount(groups, term) for term in terms.T]))
    tuple_bytes = facts["key_bytes"] + 4 * facts["row_width"]
    num_clients = (folder / f"{name}.sizes").stat().st_size // 8
    sizes = {"clients": num_clients, "rows_out": len(found)}
    return {**facts, **sizes, "bytes_in": len(keys) * tuple_bytes, "bytes_out": len(found) * tuple_bytes}


def read(folder: pathlib.Path) -> Data:
    """Reads a workload into memory of this process."""
    (path,) = folder.glob("*.json")
    facts = json.loads(path.read_text(encoding="utf-8"))
    keys = np.fromfile(path.with_suffix(".keys"), f"u{facts['key_bytes']}")
    values = np.fromfile(path.with_suffix(".values"), np.float32).reshape(len(keys), facts["row_width"])
    offsets = np.concatenate([[0], np.cumsum(np.fromfile(path.with_suffix(".sizes"), np.uint64), dtype=np.int64)])
    return Data(facts["name"], facts["num_rows"], facts["row_width"], keys, values, offsets)


def read_reference(folder: pathlib.Path) -> Reference:
    """Reads the answer, as pages of the file that all processes share."""
    names = ("keys", "sums", "magnitudes", "counts")
    return Reference(**{name: np.load(folder / f"reference_{name}.npy", mmap_mode="r") for name in names})
