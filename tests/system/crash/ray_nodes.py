"""Several nodes of Ray on this machine, of which some are killed."""

from __future__ import annotations

import atexit
import importlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

__all__ = ["RayNodes"]

_NODE = {"num_cpus": 4, "object_store_memory": 100 << 20}  # room for all servers on one node
_START_S = 150.0  # of a raylet on a busy machine, where Ray gives it 30, and then leaves it behind


class RayNodes:
    """A head, which this process is connected to, and nodes that may die: a raylet each.

    Args:
        kinds: of each node, what it has other than the others.
    """

    def __init__(self, kinds: Sequence[dict[str, Any]]) -> None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # also of coordinators
        self._ray: Any = importlib.import_module("ray")
        utils: Any = importlib.import_module("ray.cluster_utils")
        # A head without cores: only nodes that may die have actors.
        head = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False}
        # Ray's own hooks for the end of the process need its main thread, and nodes are started in others.
        self._nodes: Any = utils.Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        atexit.register(self._nodes.shutdown)
        services: Any = importlib.import_module("ray._private.services")
        services.get_node = _patient(services.get_node)
        self._kinds: dict[Any, dict[str, Any]] = {}  # by node
        for kind in kinds:
            self._add(kind)
        self.address: str = self._nodes.address
        self._ray.init(address=self.address, log_to_driver=False)

    def kill(self, number: int) -> None:
        """Kills the raylet of a node, whose actors end with it, and starts another one of its kind."""
        node = list(self._kinds)[number % len(self._kinds)]
        self._nodes.remove_node(node, allow_graceful=False)
        self._add(self._kinds.pop(node))

    def _add(self, kind: dict[str, Any]) -> None:
        self._kinds[self._nodes.add_node(**{**_NODE, **kind})] = kind

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()
        self._nodes.shutdown()
        atexit.unregister(self._nodes.shutdown)


def _patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that waits for a node where ``get_node`` raises RuntimeError since it has not registered."""

    def found(*args: Any) -> Any:
        until = time.monotonic() + _START_S
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > until:
                    raise

    return found
