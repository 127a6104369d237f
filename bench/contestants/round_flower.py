"""Flower's messages through a SuperLink, to a ServerApp that adds the updates up with NumPy at the end.

The SuperLink and the ServerApp are Flower's own, as ``flwr run`` starts them. This process plays the SuperNodes, with
the connection that a SuperNode has. The process that a SuperNode starts for each message is left out, and so are its
waits of three seconds between two looks for a message. Both sides speak Protocol Buffers over HTTP in Flower 1.42.

The ServerApp begins to fetch replies when all are there, so that the stages are apart.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import sys
import tempfile
import threading
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import push_objects
from flwr.supernode.fleet_http_connection import http_request_response

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE.parent / "tests" / "integrations" / "flower"))
from rounds import Stages, Sums, Updates, contestant  # noqa: E402
from superlink import SuperLink  # noqa: E402

from contestants import Contestant  # noqa: E402
from contestants.round_pickles import receive, send  # noqa: E402

SERVER_APP = """
import os, socket, sys, time
sys.path.insert(0, {here!r})
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from contestants.round_pickles import receive, send
from rounds import numpy_sums

app = ServerApp()

@app.main()
def main(grid, context):
    with socket.create_connection(("127.0.0.1", {port})) as peer:
        send(peer, os.getpid())
        while receive(peer) == "round":
            nodes = list(grid.get_node_ids())
            content = RecordDict({{"config": ConfigRecord({{"round": 1}})}})
            waiting = set(grid.push_messages([Message(content, node, "train") for node in nodes]))
            send(peer, "created")
            receive(peer)  # all have replied
            replies = {{}}
            while waiting:
                for reply in grid.pull_messages(sorted(waiting)):
                    if reply.has_error():
                        raise RuntimeError(str(reply.error))
                    waiting.remove(reply.metadata.reply_to_message_id)
                    arrays = reply.content["arrays"]
                    update = tuple(arrays[name].numpy() for name in sorted(arrays))
                    replies[reply.content["client"]["id"]] = update if len(update) > 1 else update[0]
            send(peer, "read")
            sums = numpy_sums([replies[client] for client in sorted(replies)])
            del replies
            send(peer, "merged")
            send(peer, sums)
"""
CLIENT_APP = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


def contestants(updates: Updates, server: str | None) -> list[Contestant]:
    del server  # it has its own
    return [contestant("Flower's SuperLink", updates, updates.expected(), Flower(updates))]


class Flower:
    """Rounds through a SuperLink."""

    is_exact = False  # adds in float32

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._open = contextlib.ExitStack()
        folder = pathlib.Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        link = self._open.enter_context(SuperLink(folder, nodes=0))
        address = f"127.0.0.1:{link.port}"
        self._nodes = [self._open.enter_context(http_request_response(address, insecure=True)) for _ in updates.ids]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            source = SERVER_APP.format(here=str(HERE), port=listener.getsockname()[1])
            self._run = threading.Thread(target=link.run, args=(source, CLIENT_APP, 3600))
            self._run.start()
            listener.settimeout(120)
            self._app, _ = listener.accept()
        self._app.settimeout(None)
        self.coordinator_pid = receive(self._app)
        self.server_pids = [link.processes[0].pid, self.coordinator_pid]

    def round(self, stages: Stages) -> Sums:
        send(self._app, "round")
        receive(self._app)
        stages.end("create")
        for node, (client_id, update) in zip(self._nodes, self._updates):
            reply_of(node, client_id, update if isinstance(update, tuple) else (update,))
        stages.end("submit")
        send(self._app, "submitted")
        receive(self._app)
        stages.end("read")
        receive(self._app)
        stages.end("merge")
        keys, values = receive(self._app)  # not timed: only this check needs them here
        return keys, values

    def close(self) -> None:
        send(self._app, "end")
        self._run.join()
        self._app.close()
        self._open.close()


def reply_of(node: Any, client_id: str, arrays: tuple[np.ndarray, ...]) -> None:
    """What a SuperNode does for a message, with a ClientApp that has its arrays already."""
    _, pull, push, _, _, _, push_object, _ = node
    while (pulled := pull()) is None:
        pass
    message, _ = pulled
    record = ArrayRecord({f"array-{index}": Array(array) for index, array in enumerate(arrays)})
    reply = Message(RecordDict({"arrays": record, "client": ConfigRecord({"id": client_id})}), reply_to=message)
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        missing, session = push(reply, get_object_tree(reply), 0.0)
    run = message.metadata.run_id
    push_objects(
        objects,
        push_object_fn=lambda object_id, contents: push_object(run, session, object_id, contents),
        object_ids_to_push=missing,
    )
