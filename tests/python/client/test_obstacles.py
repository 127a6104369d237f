"""What a client finds out about an address that it cannot reach."""

from __future__ import annotations

import socket

from sparseagg._internal.client.obstacles import find_obstacle, may_look


def test_find_obstacle_of_a_port_that_says_nothing_is_unknown():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert find_obstacle(address, False, "", 0.05) is None


def test_find_obstacle_goes_not_where_grpc_goes_through_a_proxy(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert may_look("server.example:1", True)
    assert not may_look("xds:///server.example", True)
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    assert not may_look("server.example:1", True)
    assert may_look("server.example:1", False)
    assert may_look("127.0.0.1:1", True)


def test_localhost_is_this_machine_where_no_hosts_file_names_it(monkeypatch):
    resolve = socket.getaddrinfo

    def without_hosts_file(host, *more, **options):
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_hosts_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    obstacle = find_obstacle(address, False, "", 5)
    assert obstacle is not None
    assert obstacle.text == f"nothing listens at {address}: is a server running?"
