"""NVFlare's messages between cells, as its jobs send them, to a process that adds the updates up with NumPy at the end.

What NVFlare's workflows do around them is left out: tasks that sites poll for, filters, one process a site and job.
One cell sends the updates of all clients, so that none has to connect first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import Message
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.utils import fobs
from rounds import Stages, Sums, Updates, contestant, numpy_sums

from contestants import Contestant

CHANNEL = "round"
TIMEOUT_S = 300


def contestants(updates: Updates, server: str | None) -> list[Contestant]:
    del server  # it has its own
    return [contestant("NVFlare's cells", updates, updates.expected(), NVFlare(updates))]


def start_cell(name: str, url: str) -> Cell:
    """Returns a cell that is connected."""
    flare_decomposers.register()
    fobs.register(NumpyArrayDecomposer)
    cell = Cell(name, url, secure=False, credentials={})
    cell.start()
    return cell


class NVFlare:
    """Rounds through two cells."""

    is_exact = False  # adds in float32

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "contestants.round_nvflare", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        while "listening" not in self._process.stdout.readline():
            if self._process.poll() is not None:
                raise RuntimeError("NVFlare's server cell ended")
        self.server_pids = [self._process.pid]
        self._cell = start_cell("site-1", url)
        end = time.monotonic() + 60
        while not self._is_answered("hello", {}):  # until the cells are connected
            if time.monotonic() > end:
                raise RuntimeError("NVFlare's cells do not connect")
            time.sleep(0.1)

    def round(self, stages: Stages) -> Sums:
        stages.end("create")
        for client_id, update in self._updates:
            arrays = {"values": update} if self._updates.is_dense else {"keys": update[0], "values": update[1]}
            self._request("update", {"client": client_id, **arrays})
        stages.end("submit")
        self._request("merge", {})
        stages.end("merge")
        sums = self._request("result", {})
        stages.end("read")
        return sums.get("keys"), sums["values"]

    def close(self) -> None:
        self._process.communicate("end\n", timeout=60)

    def _request(self, topic: str, payload: dict[str, Any]) -> Any:
        reply = self._send(topic, payload)
        if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK:
            raise RuntimeError(f"NVFlare: {topic}: {reply.get_header(MessageHeaderKey.RETURN_CODE)}")
        return reply.payload

    def _is_answered(self, topic: str, payload: dict[str, Any]) -> bool:
        return bool(self._send(topic, payload).get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK)

    def _send(self, topic: str, payload: dict[str, Any]) -> Message:
        return self._cell.send_request(
            channel=CHANNEL, topic=topic, target="server", request=Message({}, payload), timeout=TIMEOUT_S
        )


def serve(url: str) -> None:
    """The other side, until a line comes on the standard input."""
    lock = threading.Lock()
    updates: list[Any] = []
    sums: list[Sums] = []

    def answer(payload: Any) -> Message:
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, payload)

    def take(request: Message) -> Message:
        update = request.payload
        with lock:
            updates.append((update["keys"], update["values"]) if "keys" in update else update["values"])
        return answer({})

    def merge(_: Message) -> Message:
        sums[:] = [numpy_sums(updates)]
        updates.clear()
        return answer({})

    def result(_: Message) -> Message:
        keys, values = sums.pop()
        return answer({"values": values} if keys is None else {"keys": keys, "values": values})

    cell = start_cell("server", url)
    for topic, callback in (("hello", lambda _: answer({})), ("update", take), ("merge", merge), ("result", result)):
        cell.register_request_cb(channel=CHANNEL, topic=topic, cb=callback)
    print("listening", flush=True)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
