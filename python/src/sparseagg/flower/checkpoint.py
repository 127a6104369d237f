"""Checkpoints of strategies: a run that was killed goes on after the round that it has saved, to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

import sparseagg as sa
from sparseagg._internal.base.state_files import Path, replaced
from sparseagg.flower.model import Model, to_array
from sparseagg.optimizers import RowOptimizer

_MODEL, _OPTIMIZER = "model:", "optimizer:"


class Checkpointed:
    """The state of a strategy as arrays, and as a file.

        if os.path.exists("job.npz"):
            strategy.load("job.npz")
        strategy.start(grid, arrays, num_rounds=100, evaluate_fn=lambda server_round, arrays: strategy.save("job.npz"))

    After ``load``, ``start`` goes on with the round after the saved one, with its model in the place of
    ``initial_arrays``, until there are ``num_rounds`` (or ``num_versions``) in all. Clients see the same "server-round"
    as in a run without a break; Flower's log counts from 1.
    """

    _optimizer: RowOptimizer | None
    _served: sa.Model | None
    _model: Model | None
    _done = 0  # rounds, or versions, of which ``_model`` is the result
    _loaded: ArrayRecord | None = None  # with which the next start goes on

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last round, as arrays: for ``evaluate_fn``, or after ``aggregate_train``.

        "round": how many rounds, or versions, are done; "model:NAME": each array of the model; "optimizer:…": as of
        ``RowOptimizer.state_dict``. The arrays do not change afterwards.

        Raises:
            InvalidArgumentError: there is no model yet, or it is on a server, which keeps it with its optimizer.
        """
        if self._served is not None:
            raise sa.InvalidArgumentError(
                f"{self._served.name} is kept by the server, with the state of its optimizer: start goes on with it"
            )
        if self._model is None:
            raise sa.InvalidArgumentError("there is no model yet: save in evaluate_fn, or after start")
        state: dict[str, Any] = {"round": np.array(self._done)}
        state.update({_MODEL + name: table.dense() for name, table in self._model.tables.items()})
        if self._optimizer is not None:
            state.update({_OPTIMIZER + key: array for key, array in self._optimizer.state_dict().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes a state, with which ``start`` goes on. The strategy's arguments should be those of before.

        Raises:
            InvalidArgumentError: the state is of another optimizer, or no state of a strategy. Nothing has changed.
        """
        part = {key[len(_OPTIMIZER) :]: state[key] for key in state if key.startswith(_OPTIMIZER)}
        if "round" not in state or self._served is not None or bool(part) != (self._optimizer is not None):
            raise sa.InvalidArgumentError(
                f"{type(self).__name__} with optimizer {type(self._optimizer).__name__} cannot go on with this state, "
                f"which has {', '.join(map(repr, state)) or 'nothing'}"
            )
        arrays = {key[len(_MODEL) :]: to_array(state[key]) for key in state if key.startswith(_MODEL)}
        if self._optimizer is not None:
            self._optimizer.load_state_dict(part)
        self._done, self._loaded = int(state["round"]), ArrayRecord(arrays)

    def save(self, path: Path) -> None:
        """Writes ``state_dict`` to an .npz file. An older file is replaced when the new one is complete.

        Raises:
            InvalidArgumentError: as of ``state_dict``.
            OSError: the file cannot be written.
        """
        with replaced(path) as file:
            np.savez(file, **self.state_dict())

    def load(self, path: Path) -> None:
        """Takes the state of a file of ``save``. No code of the file runs: it has no pickles.

        Raises:
            InvalidArgumentError: the file is damaged, or as of ``load_state_dict``.
            OSError: the file cannot be read.
        """
        with open(path, "rb") as data:
            try:
                with np.load(data, allow_pickle=False) as file:
                    state = {key: file[key] for key in file.files}
            except Exception as error:  # zipfile, zlib and numpy have many for files that are damaged
                raise sa.InvalidArgumentError(f"{path}: it cannot be read as a checkpoint: {error!r}") from error
        self.load_state_dict(state)

    def _begin(self, arrays: ArrayRecord, number: Any) -> tuple[Any, ArrayRecord]:
        """Returns the model with which a run begins, and its number: those of a loaded state, or else these."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            self._done = number or 0
            return number, arrays
        forms = [{name: (array.dtype, tuple(array.shape)) for name, array in each.items()} for each in (loaded, arrays)]
        for name in sorted(forms[0].keys() | forms[1].keys()):
            saved, given = (form.get(name, "missing") for form in forms)
            if saved != given:
                raise sa.InvalidArgumentError(f"array {name!r} is {given}, and {saved} in the state that was loaded")
        return self._done, loaded
