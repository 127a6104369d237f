"""Arguments of clients that make no sense raise InvalidArgumentError, with the argument's name and its value."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import sparseagg as sa


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize(
    ("address", "text"),
    [
        (None, "an address must be a string, got None"),
        (8001, "an address must be a string, got 8001"),
        ("http://localhost:8001", r'an address must be "host:port", .* got \'http://localhost:8001\''),
        ("grpc://localhost:8001", "got 'grpc:"),
        ("localhost", "got 'localhost'"),
        ("localhost:", "got 'localhost:'"),
        ("localhost:0", "got 'localhost:0'"),
        ("localhost:65536", "got 'localhost:65536'"),
        ("localhost:8001/", "got 'localhost:8001/'"),
        ("local host:8001", "got 'local host:8001'"),
        ("::1", "got '::1'"),
        ("", "got ''"),
    ],
)
def test_address_without_host_or_port_is_refused(twin: Any, address: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        twin(address)


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("retry", 3, "retry must be a RetryPolicy, or None for the default, got 3"),
        ("options", {}, "options must be a list of pairs .name, value., got {}"),
        ("options", {"ab": 1}, "options must be a list of pairs .name, value., got {'ab': 1}"),
        ("options", ["ab"], "options must be a list of pairs .name, value., got .'ab'."),
        ("options", [(1, "a")], "options must be a list of pairs"),
        ("options", [("grpc.foo", None)], r"options must be a list of pairs .*, got \[\('grpc\.foo', None\)\]"),
        ("options", [("grpc.foo", 1.5)], "options must be a list of pairs"),
        ("tls", 2.5, "tls must be False, True, the path of a PEM file, a TLS, credentials of gRPC, or None, got 2.5"),
        ("tls", 0, "tls must be .*, got 0"),
        ("tls", 1, "tls must be .*, got 1"),
        ("tls", b"x", "tls must be .*, got b'x'"),
        ("tls", "", "tls must be .*, got ''"),
    ],
)
def test_client_of_senseless_arguments_says_so(twin: Any, argument: str, value: Any, text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        twin("localhost:1", **{argument: value})


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
@pytest.mark.parametrize("token", ["secret\n", "sécret", "\udcff", 5, b"secret"])
def test_token_that_cannot_be_sent_is_refused_and_not_shown(twin: Any, token: Any) -> None:
    with pytest.raises(sa.InvalidArgumentError, match="a token is a string of printable ASCII") as refused:
        twin("localhost:1", token=token)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"attempts": 0}, "attempts must be a number of calls from 1 on, got 0"),
        ({"attempts": math.inf}, "attempts must be a number of calls from 1 on, got inf"),
        ({"attempts": "3"}, "attempts must be a number of calls from 1 on, got '3'"),
        ({"initial": -1}, "initial must be a number from 0 on, got -1"),
        ({"multiplier": "2"}, "multiplier must be a number from 0 on, got '2'"),
        ({"maximum": math.nan}, "maximum must be a number from 0 on, got nan"),
    ],
)
def test_retry_policy_of_senseless_numbers_says_so(options: dict[str, Any], text: str) -> None:
    with pytest.raises(sa.InvalidArgumentError, match=text):
        sa.RetryPolicy(**options)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "1", np.float32(5), 10**5000], ids=range(7))
@pytest.mark.parametrize("name", ["chunk_bytes", "connections"])
def test_client_of_what_is_no_number_says_so(name: str, number: Any) -> None:
    for twin in (sa.Client, sa.aio.Client):
        with pytest.raises(sa.InvalidArgumentError, match=f"{name} must be a number from 1 on(, or None)?, got"):
            twin("localhost:1", **{name: number})


@pytest.mark.parametrize("twin", [sa.Client, sa.aio.Client])
def test_file_that_holds_no_certificate_is_refused(twin: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "authority.pem"
    path.write_bytes(b"\x30\x82 the same as DER")
    with pytest.raises(sa.InvalidArgumentError, match=r"tls: .*authority\.pem has no certificate in PEM"):
        twin("localhost:1", tls=path)
