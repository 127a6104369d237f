"""The servers that the simulation compares. Each is imported only in an environment that has it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np


class Stream:
    """A stream of sparseagg in this process, fed with sparse rows."""

    def __init__(self, model: np.ndarray, buffer: int, max_staleness: int, exponent: float, **settings: Any) -> None:
        import sparseagg as sa

        tensor = sa.TensorSpec("table", "float32", num_rows=len(model), row_width=model.shape[1])
        spec = sa.RoundSpec([tensor], op="mean", mean_divisor="submissions", weighting="uniform")
        self._refused = sa.errors.FailedPreconditionError
        self._client = sa.Client(":memory:")
        self._stream = self._client.stream(
            spec, buffer=buffer, staleness=sa.staleness.polynomial(exponent), max_staleness=max_staleness
        )
        self._buffer, self._buffered = buffer, 0
        self.model, self.version, self.refused = model, 0, 0

    def download(self, client: int) -> np.ndarray:
        """The current model, which no version changes."""
        return self.model

    def submit(self, client: int, keys: np.ndarray, rows: np.ndarray, base_version: int, base: np.ndarray) -> bool:
        """Commits; the commit that fills the buffer makes a version."""
        try:
            self._stream.submit(f"{client:04d}", {"table": (keys, rows)}, base_version=base_version)
        except self._refused:  # stale beyond the table
            self.refused += 1
            return False
        self._buffered += 1
        if self._buffered < self._buffer:
            return False
        self._buffered = 0
        self.version += 1
        merged = self._stream.result(self.version)["table"]
        self.model = self.model.copy()
        self.model[merged.indices] += merged.values.reshape(len(merged.indices), -1)
        return True

    def facts(self) -> dict[str, Any]:
        """What the stream counted."""
        return {"refused": self.refused, "staleness": list(self._stream.refresh().staleness_counts)}


class Nvflare:
    """NVFlare's BuffModelManager, the part of its edge workflow that merges; fed with dense differences."""

    def __init__(self, model: np.ndarray, buffer: int, global_lr: float, **settings: Any) -> None:
        from nvflare.apis.dxo import DXO, DataKind
        from nvflare.apis.fl_context import FLContext
        from nvflare.edge.assessors.buff_model_manager import BuffModelManager
        from nvflare.edge.mud import ModelUpdate

        logging.disable(logging.INFO)
        self._dxo, self._kind, self._update = DXO, DataKind.WEIGHT_DIFF, ModelUpdate
        self._context = FLContext()
        self._manager = BuffModelManager(num_updates_for_model=buffer, global_lr=global_lr, staleness_weight=True)
        self._manager.fire_event = lambda *_: None  # there is no engine, and nobody listens
        self._manager.initialize_model(DXO(DataKind.WEIGHTS, data={"table": model.tolist()}), self._context)
        self._manager.generate_new_model(self._context)  # version 1 is the initial model
        self._shape = model.shape
        self._read()

    def _read(self) -> None:
        self.version = self._manager.current_model_version
        self.model = np.array(self._manager.current_model.data["table"], np.float32).reshape(self._shape)

    def download(self, client: int) -> np.ndarray:
        """The current model, which no version changes."""
        return self.model

    def submit(self, client: int, keys: np.ndarray, rows: np.ndarray, base_version: int, base: np.ndarray) -> bool:
        """Hands the manager a dense difference."""
        dense = np.zeros(self._shape, np.float32)
        dense[keys] = rows
        dxo = self._dxo(self._kind, data={"dict": {"table": dense}, "count": 1})
        update = self._update(base_version, dxo.to_shareable(), {f"{client:04d}": 1.0})
        self._manager.process_updates({base_version: update}, self._context)
        if self._manager.current_model_version == self.version:
            return False
        self._read()
        return True

    def facts(self) -> dict[str, Any]:
        """Nothing is counted."""
        return {}


class Appfl:
    """APPFL's FedBuffAggregator, fed with dense models, or with base − model if ``gradient_based``."""

    def __init__(self, model: np.ndarray, buffer: int, exponent: float, gradient_based: bool, **settings: Any) -> None:
        import torch
        from appfl.algorithm.aggregator import FedBuffAggregator
        from omegaconf import OmegaConf

        self._torch = torch
        module = torch.nn.Module()
        module.table = torch.nn.Parameter(torch.from_numpy(model.copy()), requires_grad=False)
        # num_clients divides each step: with it, the step of a buffer is the mean of its updates, as in the paper.
        configuration = {
            "K": buffer,
            "alpha": 1.0,
            "num_clients": buffer,
            "staleness_fn": "polynomial",
            "staleness_fn_kwargs": {"a": exponent},
            "gradient_based": gradient_based,
            "optimize_memory": False,
        }
        self._aggregator = FedBuffAggregator(module, OmegaConf.create(configuration), logging.getLogger("appfl"))
        self._gradient_based = gradient_based
        self.version = 0

    def download(self, client: int) -> np.ndarray:
        """The current model; the aggregator notes which version the client has."""
        return self._aggregator.get_parameters(client_id=client)["table"].numpy().copy()

    def submit(self, client: int, keys: np.ndarray, rows: np.ndarray, base_version: int, base: np.ndarray) -> bool:
        """Hands the aggregator a dense tensor."""
        if self._gradient_based:
            sent = np.zeros_like(base)
            sent[keys] = -rows
        else:
            sent = base.copy()
            sent[keys] += rows
        self._aggregator.aggregate(client, {"table": self._torch.from_numpy(sent)})
        changed = self._aggregator.global_step != self.version
        self.version = self._aggregator.global_step
        return bool(changed)

    def facts(self) -> dict[str, Any]:
        """Nothing is counted."""
        return {}


def merge_round(model: np.ndarray, updates: list[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns the next model of a synchronous round: the mean of the updates, by ``sparseagg.aggregate``."""
    import sparseagg as sa

    tensor = sa.TensorSpec("table", "float32", num_rows=len(model), row_width=model.shape[1])
    spec = sa.RoundSpec([tensor], op="mean", weighting="uniform")
    merged = sa.aggregate({f"{client:04d}": {"table": (keys, rows)} for client, keys, rows in updates}, spec)["table"]
    model = model.copy()
    model[merged.indices] += merged.values.reshape(len(merged.indices), -1)
    return model


SERVERS = {"stream": Stream, "nvflare": Nvflare, "appfl": Appfl}
