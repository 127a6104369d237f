"""Uploads to a server with TLS and a token for each client."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import jobs
import pytest
import sparseagg as sa
from guarded_server import GuardedServer
from local_grid import LocalGrid, start
from sparseagg.flower import SparseFedAvg, sparse_mod

NODES = 5
SPARSE = ["embedding.weight"]


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedServer]:
    for name in ("TOKEN", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY"):
        monkeypatch.delenv(f"SPARSEAGG_{name}", raising=False)
    with GuardedServer(tmp_path, NODES) as server:
        yield server


def strategy_of(server: GuardedServer) -> SparseFedAvg:
    return SparseFedAvg(sparse=SPARSE, server=server.address, tls=server.ca, token=server.coordinator)


def mod_of(server: GuardedServer, tmp_path: pathlib.Path) -> Any:
    """Each node has a token of its own."""

    def token(context: Any) -> str:
        return server.clients[int(context.node_config["partition-id"])]

    return sparse_mod(copies=tmp_path / "copies", tls=server.ca, token=token)


def in_replies(tmp_path: pathlib.Path) -> jobs.Arrays:
    """The model of the same job without a server."""
    app = jobs.make_client_app([sparse_mod(copies=tmp_path / "other copies")])
    return start(SparseFedAvg(sparse=SPARSE), LocalGrid(app, NODES))[0]


def assert_same_bits(got: jobs.Arrays, wanted: jobs.Arrays) -> None:
    assert {name: array.tobytes() for name, array in got.items()} == {
        name: array.tobytes() for name, array in wanted.items()
    }


def submissions(server: GuardedServer) -> list[list[str]]:
    with sa.Client(server.address, tls=server.ca, token=server.coordinator) as client:
        return [[each.client_id for each in rnd.submissions()] for rnd in client.list_rounds()]


def test_id_is_the_name_of_the_credential(server: GuardedServer, tmp_path: pathlib.Path) -> None:
    app = jobs.make_client_app([mod_of(server, tmp_path)])
    got, _ = start(strategy_of(server), LocalGrid(app, NODES))
    assert_same_bits(got, in_replies(tmp_path))
    assert submissions(server) == [[f"site-{client}" for client in range(NODES)]] * 2


@pytest.mark.parametrize("seed", range(3))
def test_server_killed_in_the_middle_costs_nothing(server: GuardedServer, tmp_path: pathlib.Path, seed: int) -> None:
    """Between two uploads of the first round, and while the strategy waits to close the second."""
    print(f"seed {seed}")

    class Killing(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            training = [m for m in set(message_ids) & set(self._waiting) if self._is_train(m)]
            if len(self.replies) == seed + 1 or (len(self.replies) > NODES and len(training) == 1):
                server.kill()
                again = threading.Thread(target=server.restart)
                again.start()  # while the next client tries to upload
                try:
                    return super().pull_messages(message_ids)
                finally:
                    again.join()
            return super().pull_messages(message_ids)

        def _is_train(self, message_id: str) -> bool:
            return str(self._waiting[message_id].metadata.message_type) == "train"

    grid = Killing(jobs.make_client_app([mod_of(server, tmp_path)]), NODES, seed=seed)
    got, result = start(strategy_of(server), grid)
    assert not [reply.error for reply in grid.replies if reply.has_error()]
    assert_same_bits(got, in_replies(tmp_path))
    assert set(result.train_metrics_clientapp) == {1, 2}


def test_environment_has_the_credentials(
    server: GuardedServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEAGG_TLS_CA", str(server.ca))
    monkeypatch.setenv("SPARSEAGG_TOKEN", server.nameless)  # without a name: any id
    app = jobs.make_client_app([sparse_mod(copies=tmp_path / "copies")])
    strategy = SparseFedAvg(sparse=SPARSE, server=server.address, token=server.coordinator)
    grid = LocalGrid(app, NODES)
    got, _ = start(strategy, grid)
    assert_same_bits(got, in_replies(tmp_path))
    ids = [f"{partition:010d}:{node}" for partition, node in enumerate(grid.contexts)]
    assert submissions(server) == [ids] * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": "sagg_wrong"}, "UnauthenticatedError|token"),
        ({"tls": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    ],
)
def test_client_with_a_wrong_credential_fails_alone(
    changes: Any, words: str, server: GuardedServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    good = jobs.make_client_app([mod_of(server, tmp_path)])
    options = {"copies": tmp_path / "copies", "tls": server.ca, "token": server.clients[2], **changes}
    bad = jobs.make_client_app([sparse_mod(**options)])

    def app(message: Any, context: Any) -> Any:
        return (bad if context.node_config["partition-id"] == 2 else good)(message, context)

    start(strategy_of(server), LocalGrid(app, NODES), rounds=1)  # type: ignore[arg-type]
    assert f"aggregate_train: Received {NODES - 1} results and 1 failures" in caplog.text
    (line,) = (line for line in caplog.messages if "Received error in reply" in line)
    assert any(word in line for word in words.split("|")), line
    assert "client '0000000002:" in line
    assert "sagg_" not in caplog.text


def test_credentials_without_an_address_are_refused(server: GuardedServer) -> None:
    for options in ({"tls": True}, {"token": "x"}, {"tls": server.ca, "server": sa.Client(server.address)}):
        with pytest.raises(sa.InvalidArgumentError, match="tls and token are of the connection to server="):
            SparseFedAvg(**options)
