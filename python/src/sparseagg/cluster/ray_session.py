"""The connection of this process to Ray, which ``pip install "ray[data]"`` brings."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import secrets
from collections.abc import Iterator
from typing import Any

from sparseagg.errors import UnimplementedError

__all__ = ["ray_session"]

# Where Ray looks for the token by which its processes know each other. Without one of them Ray makes a token for all of
# the user's clusters in ~/.ray/auth_token, which stays.
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextlib.contextmanager
def ray_session(num_cpus: float) -> Iterator[Any]:
    """Lends Ray: the one that this process is connected to, or that of RAY_ADDRESS, as in a job of ``ray job submit``,
    or one on this machine, which ends with the context.

    Args:
        num_cpus: that the caller's actors take. A Ray that is started here offers as many more as the machine has, for
            tasks such as those of Ray Data.

    Raises:
        UnimplementedError: Ray is not installed.
    """
    try:
        ray: Any = importlib.import_module("ray")
        for name in ("ray.util", "ray.util.scheduling_strategies"):
            importlib.import_module(name)
    except ImportError as error:
        raise UnimplementedError(f'a cluster with Ray needs it: pip install "ray[data]" ({error})') from error
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {"num_cpus": math.ceil(num_cpus) + (os.cpu_count() or 1), "include_dashboard": False}
    if os.environ.get("RAY_ADDRESS"):
        own = {}
    elif not (os.path.exists(os.path.expanduser("~/.ray/auth_token")) or any(map(os.environ.get, _TOKEN_VARIABLES))):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # for the rest of this process: Ray has read it
    try:
        ray.init(log_to_driver=False, **own)
        yield ray
    finally:
        ray.shutdown()
