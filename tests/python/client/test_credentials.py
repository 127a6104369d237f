"""Tokens and TLS: what a client sends to whom, and what a real server makes of it."""

from __future__ import annotations

import pathlib
import pickle
import re
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sparseagg as sa
from guarded_server import make_token
from real_server import REPOSITORY, server_binary
from sparseagg._internal.commands.cli import main

ONCE = sa.RetryPolicy(attempts=1)
SPEC = sa.RoundSpec([sa.TensorSpec("v", dtype="float32", num_rows=10)], op="sum")
UPDATE = {"v": (np.array([1, 3]), np.array([1.0, 2.0], np.float32))}


class Guarded:
    """A server with tokens and TLS, and their files."""

    def __init__(self, folder: pathlib.Path, start: Callable[..., Any]) -> None:
        self.tokens, self.tls = folder / "tokens", folder / "tls"
        self.token = {
            role: make_token(self.tokens, role, "--name", "site-1")
            for role in ("admin", "coordinator", "client", "observer")
        }
        self.address = start("--tokens-file", str(self.tokens), "--dev-tls", str(self.tls)).address

    @property
    def ca(self) -> pathlib.Path:
        return self.tls / "ca.pem"

    def client(self, role: str, **options: Any) -> sa.Client:
        return sa.Client(self.address, token=self.token[role], tls=self.ca, retry=ONCE, **options)


def call_for_ever(client: sa.Client) -> None:
    while True:
        client.server_info()


@pytest.fixture
def guarded(tmp_path: pathlib.Path, start_server: Callable[..., Any]) -> Guarded:
    return Guarded(tmp_path, start_server)


@pytest.fixture(autouse=True)
def nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY"):
        monkeypatch.delenv(f"SPARSEAGG_{name}", raising=False)


def test_round_with_tokens_and_tls_uploads_come_from_the_credential(guarded: Guarded) -> None:
    with guarded.client("coordinator") as coordinator, guarded.client("client") as client:
        opened = coordinator.create_round(SPEC, "r")
        mine = client.get_round("r")
        mine.submit("site-1", UPDATE)
        with pytest.raises(
            sa.errors.PermissionDeniedError, match="of client 'site-1', and the request of client 'site-2'"
        ):
            mine.submit("site-2", UPDATE)
        with pytest.raises(
            sa.errors.PermissionDeniedError, match="role 'client' of this credential may not call CloseRound"
        ):
            mine.start_merge()
        with pytest.raises(sa.errors.PermissionDeniedError, match="may not call SealRound"):
            mine.seal()
        with pytest.raises(sa.errors.PermissionDeniedError, match="may not call InspectRound"):
            sa.robust.inspect(mine)
        assert mine.submit("", UPDATE).client_id == "site-1"  # the credential's name; the content counts once
        opened.submit("site-2", UPDATE)
        assert opened.finish()["v"].values.ravel().tolist() == [2.0, 4.0]
        with guarded.client("observer") as observer:
            assert observer.get_round("r").result()["v"].keys.tolist() == [1, 3]


def test_token_of_the_environment_is_sent_and_an_argument_goes_before_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEAGG_TOKEN", guarded.token["observer"])
    with sa.Client(guarded.address, tls=guarded.ca) as client, pytest.raises(sa.errors.PermissionDeniedError):
        client.create_round(SPEC)
    with guarded.client("coordinator") as client:
        client.create_round(SPEC)


def test_tls_of_the_environment_is_used_and_an_argument_goes_before_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARSEAGG_TOKEN", guarded.token["coordinator"])
    monkeypatch.setenv("SPARSEAGG_TLS_CA", str(guarded.ca))
    with sa.Client(guarded.address) as client:
        opened = client.create_round(SPEC)
        copy = pickle.loads(pickle.dumps(opened))
        copy.submit("site-1", UPDATE)
        copy._release()
        with sa.Round.from_handle(opened.handle) as same:  # all that a worker is given
            assert [submission.client_id for submission in same.submissions()] == ["site-1"]
    assert main(["info", "--address", guarded.address]) == 0
    capsys.readouterr()
    for tls in (False, True):
        with sa.Client(guarded.address, tls=tls, retry=ONCE) as client, pytest.raises(sa.errors.UnavailableError):
            client.server_info()
    monkeypatch.setenv("SPARSEAGG_TLS_CA", "system")
    with sa.Client(guarded.address, retry=ONCE) as client, pytest.raises(sa.errors.UnavailableError):
        client.server_info()


def test_certificate_of_the_environment_is_the_identity(
    tmp_path: pathlib.Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = tmp_path / "tls"
    start_server("--dev-tls", str(tls))  # makes the files
    address = start_server("--dev-tls", str(tls), "--tls-client-ca", str(tls / "ca.pem")).address
    monkeypatch.setenv("SPARSEAGG_TLS_CA", str(tls / "ca.pem"))
    monkeypatch.setenv("SPARSEAGG_TLS_CERTIFICATE", str(tls / "coordinator.pem"))
    with pytest.raises(sa.InvalidArgumentError, match="SPARSEAGG_TLS_CERTIFICATE and SPARSEAGG_TLS_KEY go together"):
        sa.Client(address)
    monkeypatch.setenv("SPARSEAGG_TLS_KEY", str(tls / "coordinator.key"))
    with sa.Client(address) as client:
        client.create_round(SPEC)


def test_environment_changes_nothing_for_this_process_and_its_own_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())
    monkeypatch.setenv("SPARSEAGG_TLS_CA", "/nowhere")
    for address in (":memory:", ":local:"):
        with sa.Client(address) as client:
            assert client.aggregate({"a": UPDATE}, SPEC)["v"].keys.tolist() == [1, 3]


def test_function_gives_each_call_its_token(guarded: Guarded) -> None:
    tokens = iter([guarded.token["observer"], "expired", guarded.token["observer"]])
    with sa.Client(guarded.address, token=lambda: next(tokens), tls=guarded.ca, retry=ONCE) as client:
        client.server_info()
        with pytest.raises(sa.errors.UnauthenticatedError):
            client.server_info()
        client.server_info()


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize("address", ["server.example:1", "10.0.0.1:1", "[2001:db8::1]:1", "dns:///server.example:1"])
def test_token_over_a_plain_connection_to_another_machine_is_refused(
    twin: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=r"everybody on the way .* could read the token") as refused:
        twin(address, token="secret")
    assert "secret" not in str(refused.value)
    with pytest.raises(sa.InvalidArgumentError, match="everybody on the way"):
        twin(address, token=lambda: "secret")
    twin(address, token="secret", insecure_token=True)
    twin(address, token="secret", tls=True)
    twin(address)
    monkeypatch.setenv("SPARSEAGG_TOKEN", "secret")
    with pytest.raises(sa.InvalidArgumentError, match="SPARSEAGG_TOKEN"):
        twin(address)


def test_admin_works_in_the_tenant_that_it_names(tmp_path: pathlib.Path, start_server: Callable[..., Any]) -> None:
    tokens = tmp_path / "tokens"
    red = make_token(tokens, "coordinator", "--tenant", "red")
    admin = make_token(tokens, "admin", "--tenant", "blue")
    address = start_server("--tokens-file", str(tokens)).address
    with sa.Client(address, token=red) as client:
        client.create_round(SPEC, "r")
    with (
        sa.Client(address, token=red, tenant="blue") as client,
        pytest.raises(sa.errors.PermissionDeniedError, match="another"),
    ):
        client.server_info()
    with sa.Client(address, token=admin) as client:
        assert list(client.list_rounds()) == []
    with sa.Client(address, token=admin, tenant="red") as client:
        assert [found.name for found in client.list_rounds()] == ["rounds/r"]
    with pytest.raises(sa.InvalidArgumentError, match="tenant 'a/b' is not 1 to 128 of"):
        sa.Client(address, tenant="a/b")


def test_keys_revoked_while_the_server_runs_are_refused(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    with guarded.client("observer") as observer, guarded.client("client") as client:
        observer.server_info()
        capsys.readouterr()
        assert main(["keys", "list", str(guarded.tokens)]) == 0
        listed = capsys.readouterr().out
        assert not any(token in listed for token in guarded.token.values())
        (line,) = [line for line in listed.splitlines() if " observer " in line]
        assert main(["keys", "revoke", str(guarded.tokens), line.split()[0]]) == 0
        with pytest.raises(sa.errors.UnauthenticatedError, match="does not know this token"):
            call_for_ever(observer)  # the server looks at the file every second
        client.server_info()
    assert main(["keys", "list", str(guarded.tokens)]) == 0
    assert " observer " not in capsys.readouterr().out


def test_keys_that_are_refused_change_nothing(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    make_token(path, "client", "--days", "1")
    before = path.read_text()
    key = before.splitlines()[-1][:12]
    for words, error in [
        (["create", "--role", "client", "--tenant", "a/b"], "--tenant 'a/b' is not 1 to 128 of"),
        (["create", "--role", "client", "--tenant", "-"], "--tenant '-' is not 1 to 128 of"),
        (["create", "--role", "client", "--name", "a b"], "--name 'a b' is not 1 to 128 of"),
        (["create", "--role", "client", "--name", ".."], "--name '..' is not 1 to 128 of"),
        (["create", "--role", "client", "--name", ""], "--name '' is not 1 to 128 of"),
        (["create", "--role", "client", "--days", "0"], "--days must be a number above 0"),
        (["create", "--role", "client", "--days", "nan"], "--days must be a number above 0"),
        (["create", "--role", "client", "--days", "1e300"], "--days must be a number above 0"),
        (["create", "--role", "client", "--output", str(path)], "exists already"),
        (["revoke", "0" * 12], "has 0 keys"),
        (["revoke", key, "0" * 12], "has 0 keys"),
        (["revoke", key[:7]], "8 hex digits or more"),
    ]:
        assert main(["keys", words[0], str(path), *words[1:]]) == 1
        assert error in capsys.readouterr().err, words
        assert path.read_text() == before
    assert main(["keys", "revoke", str(tmp_path / "missing"), key]) == 1


def test_keys_without_output_print_the_token_alone(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", str(tmp_path / "tokens"), "--role", "admin"]) == 0
    token = capsys.readouterr().out.strip()
    assert token.startswith("sagg_")
    assert len(token) >= 48
    assert token not in (tmp_path / "tokens").read_text()


def test_command_sends_token_over_tls(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    path = guarded.tokens.with_name("for-the-command")
    path.write_text(guarded.token["observer"] + "\n")
    flags = ["--address", guarded.address, "--tls-ca", str(guarded.ca)]
    assert main(["info", *flags, "--token-file", str(path)]) == 0
    assert main(["top", "--once", *flags, "--token-file", str(path)]) in (0, 1)  # 1: without the package rich
    capsys.readouterr()
    assert main(["info", *flags]) == 1
    said = capsys.readouterr().err
    assert "headers 'authorization'" in said
    assert "token=…, or SPARSEAGG_TOKEN in the environment, sends it (--token-file FILE for commands)" in said
    path.write_text("two tokens")
    assert main(["info", *flags, "--token-file", str(path)]) == 1
    assert "has no single token" in capsys.readouterr().err


def test_server_object_takes_tokens_and_tls(
    tmp_path: pathlib.Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEAGG_SERVER", server_binary())
    tls, tokens = tmp_path / "tls", tmp_path / "tokens"
    start_server("--dev-tls", str(tls))  # makes the files
    token = make_token(tokens, "observer")
    files = sa.TLS(certificate=tls / "server.pem", key=tls / "server.key")
    with sa.Server(tls=files, tokens_file=tokens) as server:
        with sa.Client(server.address, token=token, tls=tls / "ca.pem") as client:
            client.server_info()
        with (
            sa.Client(server.address, tls=tls / "ca.pem", retry=ONCE) as client,
            pytest.raises(sa.errors.UnauthenticatedError),
        ):
            client.server_info()
    for wrong in ({"tls": True}, {"tls": sa.TLS(ca="x")}, {"tokens_file": 5}, {"tls": files, "shared": True}):
        with pytest.raises(sa.InvalidArgumentError):
            sa.Server(**wrong)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"certificate": "x"}, "certificate and key go together"),
        ({"key": "x"}, "certificate and key go together"),
        ({"ca": b"x"}, "ca must be the path of a PEM file, or None, got b'x'"),
        ({"ca": ""}, "ca must be the path of a PEM file"),
    ],
)
def test_tls_of_senseless_arguments_says_so(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.TLS(**arguments)


def test_security_page_commands_and_example_work(
    tmp_path: pathlib.Path, start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8").partition("## In one minute")[2]
    commands = [
        shlex.split(line) for line in re.findall(r"^    (sparseagg.*)$", page.partition("```")[0], re.MULTILINE)
    ]
    assert [command[0] for command in commands] == ["sparseagg", "sparseagg", "sparseagg-server"]
    for command in commands[:-1]:
        assert main(command[1:]) == 0
    address = start_server(*commands[-1][1:]).address
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("localhost:8001", address)
    names: dict[str, Any] = {"spec": SPEC}
    exec(example, names)
    assert names["rnd"].info.state == "open"


@pytest.mark.parametrize("token", [5, b"secret", "sécret", "secret\n"])
def test_function_whose_token_cannot_be_sent_is_refused_and_not_shown(guarded: Guarded, token: Any) -> None:
    client = sa.Client(guarded.address, token=lambda: token, tls=guarded.ca)
    with client, pytest.raises(sa.InvalidArgumentError, match="a token is a string of printable ASCII") as refused:
        client.server_info()
    assert "cret" not in str(refused.value)
