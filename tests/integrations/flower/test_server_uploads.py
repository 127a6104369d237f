"""Clients that upload to a sparseagg server, and reply with metrics alone."""

from __future__ import annotations

import re
from typing import Any

import jobs
import numpy as np
import pytest
import sparseagg as sa
from flwr.app import ConfigRecord, Message, RecordDict
from local_grid import LocalGrid, start
from sparseagg.cluster import Cluster
from sparseagg.flower import SparseFedAvg, sparse_mod
from sparseagg.flower.model import CONFIG

NODES = 6
SPARSE = ["embedding.weight"]


def test_model_has_the_bits_of_arrays_in_replies(server: sa.Client, tmp_path: Any) -> None:
    wanted, _ = start(
        SparseFedAvg(sparse=SPARSE), LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES)
    )
    grid = LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES, seed=1)
    got, result = start(SparseFedAvg(sparse=SPARSE, server=server), grid)
    assert all(got[name].tobytes() == array.tobytes() for name, array in wanted.items())
    assert set(result.train_metrics_clientapp[2]) == {"loss"}
    # A reply has metrics and the configuration alone.
    assert not any(reply.content.array_records for reply in grid.replies)
    assert max(max(sizes) for sizes in grid.received.values()) < 1000


def test_model_has_the_bits_of_arrays_in_replies_with_a_cluster(tmp_path: Any) -> None:
    wanted, _ = start(
        SparseFedAvg(sparse=SPARSE), LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES)
    )
    with Cluster(3, ranges=2) as cluster:
        for server in (cluster, ",".join(cluster.addresses)):
            grid = LocalGrid(jobs.make_client_app([sparse_mod(copies=tmp_path)]), NODES, seed=1)
            got, _ = start(SparseFedAvg(sparse=SPARSE, server=server), grid)
            assert all(got[name].tobytes() == array.tobytes() for name, array in wanted.items())
            assert not any(reply.content.array_records for reply in grid.replies)
        assert [list(each.list_rounds()) for each in cluster._clients] == [[], [], []]


def test_client_that_dies_after_its_upload_does_not_count(
    server: sa.Client, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    inner = jobs.make_client_app([sparse_mod(copies=tmp_path)])

    def app(message: Message, context: Any) -> Message:
        reply = inner(message, context)
        if context.node_config["partition-id"] == 2:
            raise ConnectionError("the client is gone")
        return reply

    caplog.set_level("INFO", "flwr")
    got, _ = start(SparseFedAvg(sparse=SPARSE, server=server), LocalGrid(app, NODES), rounds=1)  # type: ignore[arg-type]
    before = jobs.initial_model()
    trained = [jobs.train_arrays(before, partition, 1) for partition in range(NODES) if partition != 2]
    wanted = jobs.rounded(before, jobs.average(before, trained))
    np.testing.assert_array_equal(got["dense.weight"], wanted["dense.weight"])
    assert "aggregate_train: Received 5 results and 1 failures" in caplog.text


def test_late_and_repeated_submissions_are_error_replies(server: sa.Client, tmp_path: Any) -> None:
    app = jobs.make_client_app([sparse_mod(copies=tmp_path)])
    messages: list[tuple[Message, RecordDict, Any]] = []

    class Recording(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            for message_id in set(message_ids) & set(self._waiting):
                message = self._waiting[message_id]
                context = self.contexts[message.metadata.dst_node_id]
                messages.append((message, message.content, context))
            replies = super().pull_messages(message_ids)
            for reply in replies:
                again, content, context = next(
                    each for each in messages if each[0].metadata.message_id == reply.metadata.reply_to_message_id
                )
                again.content = RecordDict(dict(content))
                if CONFIG in content and "round" in content[CONFIG]:
                    # Flower delivers a message at least once: the same content again counts once.
                    assert not app(again, context).has_error()
                    again.content = RecordDict(dict(content))
                    again.content["config"] = ConfigRecord({"server-round": 99})
                    other = app(again, context)
                    assert other.has_error()
                    assert other.error.reason.startswith("sparseagg: ")
            return replies

    grid = Recording(app, NODES, silent=[0])
    got, _ = start(SparseFedAvg(sparse=SPARSE, server=server, fraction_evaluate=0.0), grid, rounds=1, timeout=5)
    before = jobs.initial_model()
    trained = [jobs.train_arrays(before, partition, 1) for partition in range(1, NODES)]
    wanted = jobs.rounded(before, jobs.average(before, trained))
    np.testing.assert_array_equal(got["dense.weight"], wanted["dense.weight"])
    straggler, content, context = next(each for each in messages if each[2].node_config["partition-id"] == 0)
    straggler.content = RecordDict(dict(content))
    late = app(straggler, context)
    assert late.has_error()
    assert re.match(r"sparseagg: client '0000000000:\d+': rounds/", late.error.reason)


def test_server_that_cannot_be_reached_is_an_error_of_the_client(server: sa.Client, tmp_path: Any) -> None:
    inner = jobs.make_client_app([sparse_mod(copies=tmp_path)])

    def app(message: Message, context: Any) -> Message:
        if context.node_config["partition-id"] == 0:
            config = dict(message.content[CONFIG])
            config["round"] = "sparseagg://127.0.0.1:1/rounds/none"
            message.content = RecordDict({**message.content, CONFIG: ConfigRecord(config)})
        return inner(message, context)

    strategy = SparseFedAvg(sparse=SPARSE, server=server, fraction_evaluate=0.0)
    grid = LocalGrid(app, 3)  # type: ignore[arg-type]
    start(strategy, grid, rounds=1, timeout=120)
    errors = [reply for reply in grid.replies if reply.has_error()]
    assert len(errors) == 1
    assert errors[0].error.reason.startswith("sparseagg: ")
