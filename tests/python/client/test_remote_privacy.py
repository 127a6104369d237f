"""Rounds with privacy on a server: the noise key, what a restart gives, and what callers do not see."""

from __future__ import annotations

import dataclasses
import json
import re

import http_calls
import numpy as np
import pytest
import sparseagg as sa
from guarded_server import make_token
from private_rounds import KEY, check_noise, crowd, private_spec
from real_server import ServerProcess
from sparseagg._internal.spec.bounds import ClusterSpec, HomeServer


def _key_file(folder, key=KEY):
    path = folder / "noise.key"
    path.write_bytes(key)
    return ["--noise-key-file", str(path)]


@pytest.fixture(scope="module")
def private_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    running = ServerProcess(folder / "log", *_key_file(folder), *http_calls.LOCAL)
    yield running
    assert running.stop() == 0


def _noisy():
    return private_spec(sa.PrivacySpec(noise_multiplier=1.0, keys="public"))


def test_server_without_a_key_refuses_private_rounds(server):
    with sa.Client(server.address) as client:
        assert "RoundSpec.privacy" in client.server_info().features
        with pytest.raises(sa.errors.FailedPreconditionError, match="--noise-key-file"):
            client.create_round(private_spec())


def test_short_key_stops_the_start(start_server, tmp_path):
    with pytest.raises(AssertionError, match="it needs 32 random ones or more"):
        start_server(*_key_file(tmp_path, bytes(31)))


@pytest.mark.parametrize("key", [bytes(64), b"a" * 32], ids=["zeros", "letters"])
def test_constant_key_stops_the_start(start_server, tmp_path, key):
    with pytest.raises(AssertionError, match=f"noise.key has {len(key)} equal bytes, which are no secret"):
        start_server(*_key_file(tmp_path, key))


def test_key_that_everybody_may_write_stops_the_start(start_server, tmp_path):
    flags = _key_file(tmp_path)
    (tmp_path / "noise.key").chmod(0o666)
    with pytest.raises(AssertionError, match=r"--noise-key-file: .*noise.key has the mode 666"):
        start_server(*flags)
    (tmp_path / "noise.key").chmod(0o644)
    start_server(*flags)
    assert "secret_exposed" in (tmp_path / "server-0.log").read_text()
    (tmp_path / "noise.key").chmod(0o600)
    start_server(*flags)
    assert "secret_exposed" not in (tmp_path / "server-1.log").read_text()


def test_model_takes_private_rounds_only_if_it_says_which_reads_it_allows(private_server):
    tensors = [
        {"name": each.name, "dtype": "float32", "numRows": str(each.num_rows), "rowWidth": each.row_width}
        for each in private_spec().tensors
    ]
    with sa.Client(private_server.address) as client:
        opened = client.create_round(private_spec())

        def apply(model: str, spec: dict) -> str:
            body = {"modelId": model, "spec": {"tensors": tensors} | spec}
            assert http_calls.request(private_server.http_address, "POST", "/v1/models", body).status == 200
            path = f"/v1/models/{model}:apply"
            return http_calls.request(private_server.http_address, "POST", path, {"round": opened.name}).json["detail"]

        assert "is private; create the model with reads blocks, whole or keys" in apply("any", {})
        assert "the round is OPEN" in apply("whole", {"reads": "WHOLE"})


def test_private_round_hides_rare_keys_and_refuses_withdrawals(private_server):
    with sa.Client(private_server.address) as client:
        opened = client.create_round(private_spec())
        assert opened.spec == private_spec()
        for name, update in crowd(60).items():
            opened.submit(name, update)
        opened.submit("z", {"v": ([5, 6], np.full((2, 2), 0.5)), "bias": np.zeros((4, 1))})
        with pytest.raises(sa.errors.FailedPreconditionError, match="privacy refuses withdrawals"):
            opened.withdraw("z")
        with pytest.raises(sa.errors.FailedPreconditionError, match="privacy refuses only_client_ids"):
            opened.finish(only=["z"])
        opened.seal()
        with pytest.raises(sa.errors.FailedPreconditionError, match="privacy refuses inspections"):
            sa.robust.inspect(opened)
        with pytest.raises(sa.errors.FailedPreconditionError, match="privacy refuses client_weights"):
            opened.start_merge(client_weights={"z": 1.0})
        result = opened.finish()
        assert result["v"].keys.tolist() == [3, 70]
        np.testing.assert_allclose(result["v"].values, 60 * 0.125, atol=0.01)
        servers = ClusterSpec((HomeServer("127.0.0.1:1"), HomeServer("127.0.0.1:2")), 0)
        with pytest.raises(sa.InvalidArgumentError, match="privacy and cluster exclude each other"):
            client.create_round(dataclasses.replace(private_spec(), cluster=servers))
        with pytest.raises(sa.InvalidArgumentError, match="privacy refuses min_submissions"):
            client.create_round(private_spec(min_submissions=1))
        with pytest.raises(sa.InvalidArgumentError, match="privacy refuses prune_zeros"):
            client.create_round(private_spec(prune_zeros=True))


def test_restart_publishes_the_same_noise_and_other_keys_nothing(start_server, tmp_path):
    flags = ["--data-dir", str(tmp_path / "data"), *_key_file(tmp_path)]
    first = start_server(*flags)
    with sa.Client(first.address) as client:
        opened = client.create_round(_noisy(), round_id="kept")
        for name, update in crowd(5).items():
            opened.submit(name, update)
        before = opened.finish()
    first.kill()
    second = start_server(*flags)
    with sa.Client(second.address) as client:
        after = client.get_round("kept").result()
    assert after["v"].values.tobytes() == before["v"].values.tobytes()
    assert after["bias"].values.tobytes() == before["bias"].values.tobytes()
    second.kill()
    with pytest.raises(AssertionError, match="the noise key is another one"):
        start_server("--data-dir", str(tmp_path / "data"), *_key_file(tmp_path, KEY[::-1]))
    with pytest.raises(AssertionError, match="needs a noise key"):
        start_server("--data-dir", str(tmp_path / "data"))


@pytest.mark.parametrize("round_id", [None, "again"])
def test_rounds_of_equal_submissions_have_noise_of_their_own(private_server, round_id):
    with sa.Client(private_server.address) as client:
        results = []
        for _ in range(2):
            opened = client.create_round(_noisy(), round_id=round_id)
            for name, update in crowd(3).items():
                opened.submit(name, update)
            results.append(opened.finish()["v"].values)
            opened.delete()
        results += [client.aggregate(crowd(3), _noisy())["v"].values for _ in range(2)]
    for i, one in enumerate(results):
        for other in results[:i]:
            assert np.mean(one == other) < 0.05


def test_noise_of_a_round_can_be_computed_again(start_server, tmp_path):
    flags = ["--data-dir", str(tmp_path / "data"), *_key_file(tmp_path)]
    server = start_server(*flags)
    privacy = sa.PrivacySpec(noise_multiplier=1.0, keys="public", public_keys={"v": [3, 70]})
    with sa.Client(server.address) as client:
        opened = client.create_round(private_spec(privacy), round_id="known")
        for name, update in crowd(2).items():
            opened.submit(name, update)
    server.kill()
    with sa.Client(start_server(*flags).address) as client:
        check_noise(client.get_round("known").finish(), 2, ("default", "known"))


# What each request asks for; {client} is the submission by which the two rounds differ, or one that neither has.
READ = (
    "GET /v1/info",
    "GET /v1/rounds",
    "GET /v1/rounds/r",
    "GET /v1/rounds/r:wait?timeout=0s",
    "GET /v1/rounds/r/submissions",
    "GET /v1/rounds/r/uploads?client_id={client}&submission_id=s",
    "GET /v1/rounds/r/inspection",
    "GET /v1/rounds/r/certificate",
    "GET /v1/rounds/r/receipt?client_id={client}",
    "GET /v1/rounds/r/export",
    "GET /v1/rounds/r/result?tensor=v",
    "GET /v1/tasks",
    "POST /v1/rounds/r:seal",
    "POST /v1/rounds/r:close",
    "GET /metrics",
    "GET /",
)


def _everything_read(address, token, client):
    """The answers to READ, without times, and without the values of results, which have noise of their own."""
    answers = {}
    for request in READ:
        method, _, path = request.format(client=client).partition(" ")
        sent = {} if method == "POST" else None
        answer = http_calls.request(address, method, path, sent, authorization=f"Bearer {token}")
        body = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", answer.body.decode())
        body = re.sub(r'"(values|[a-zA-Z]*[uU]ptime|[a-zA-Z]*[dD]uration)":\s*"[^"]*"', r'"\1": …', body)
        answers[request] = (answer.status, body)
    return answers


@pytest.mark.parametrize("role", ["client", "observer"])
def test_all_that_others_can_read_is_the_same_with_and_without_a_submission(start_server, tmp_path, role):
    seen = []
    for number, name in enumerate(("with", "without")):
        folder = tmp_path / name
        folder.mkdir()
        tokens = {"coordinator": make_token(folder / "t", "coordinator")}
        tokens[role] = make_token(folder / "t", role, *(("--name", "reader") if role == "client" else ()))
        flags = (*_key_file(folder), "--tokens-file", str(folder / "t"), "--http-address", "127.0.0.1:0")
        server = start_server(*flags)
        answers = []
        with sa.Client(server.address, token=tokens["coordinator"], insecure_token=True) as coordinator:
            opened = coordinator.create_round(private_spec(), round_id="r")
            updates = crowd(60)
            first = next(iter(updates))
            for client_id, update in list(updates.items())[number:]:
                opened.submit(client_id, update)
            answers.append(_everything_read(server.http_address, tokens[role], first))
            opened.finish()
            answers.append(_everything_read(server.http_address, tokens[role], first))
        seen.append(answers)
    for with_it, without in zip(*seen):
        infos = [json.loads(each.pop("GET /v1/info")[1]) for each in (with_it, without)]
        assert infos[0].pop("instance") != infos[1].pop("instance")  # each start has another one
        assert infos[0] == infos[1]
        assert with_it == without
        assert with_it["GET /v1/rounds/r"][0] == 200
    assert seen[0][1]["GET /v1/rounds/r/result?tensor=v"][0] == 200
