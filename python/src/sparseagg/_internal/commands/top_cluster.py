"""What ``sparseagg top`` knows of a cluster: its rounds over all servers, and how their results came about."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.base.sizes import decimal
from sparseagg._internal.client.blocking_client import Client
from sparseagg._internal.commands.top_look import Look, look_at
from sparseagg._internal.results.info import RoundInfo
from sparseagg.cluster.published import Listed, read_list
from sparseagg.cluster.round_info import cluster_info
from sparseagg.cluster.server_spec import cluster_spec

__all__ = ["TopCluster"]


class TopCluster:
    """The servers of a cluster, for the calls that ``top`` makes of one server's client.

    Args:
        addresses: of the servers, in the order of their rounds.
        options: of ``Client``.
    """

    def __init__(self, addresses: Sequence[str], **options: Any) -> None:
        self.address = ",".join(addresses)
        self._clients = [Client(address, **options) for address in addresses]
        self._pool = concurrent.futures.ThreadPoolExecutor(len(addresses))
        self._lists: dict[tuple[str, Any], Listed] = {}  # which do not change

    def __enter__(self) -> TopCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._pool.shutdown()

    def close(self) -> None:
        """Closes the connections; a look that is under way ends with an error."""
        for client in self._clients:
            client.close()

    def look(self) -> Look:
        """Asks all servers, and returns the cluster's rounds, each once, and the other rounds of the servers.

        Raises:
            SparseaggError: a server does not answer.
        """
        looks = list(self._pool.map(lambda client: look_at(client, None), self._clients))
        by_name: dict[str, dict[int, RoundInfo]] = {}
        rounds: list[RoundInfo] = []
        for look in looks:
            for info in look.rounds:
                if info.spec.cluster is not None:
                    by_name.setdefault(info.name, {})[info.spec.cluster.index] = info
                else:
                    rounds.append(info)
        notes = {}
        for name, infos in by_name.items():
            found = self._list(name, infos)
            own = [infos[index] for index in sorted(infos)]
            rounds.append(cluster_info(cluster_spec(own[0].spec), {}, own, found))
            notes[name] = _note(name, infos, found)
        return dataclasses.replace(
            looks[0], rounds=tuple(rounds), notes=notes, other_servers=tuple(look.server for look in looks[1:])
        )

    def _list(self, name: str, infos: dict[int, RoundInfo]) -> Listed | None:
        first = next(iter(infos.values()))
        key = (name, first.create_time)
        if key not in self._lists and first.state == "done":
            found = read_list(self._clients[0].get_round(name))
            if found is not None:
                self._lists[key] = found
        return self._lists.get(key)


def _note(name: str, infos: dict[int, RoundInfo], found: Listed | None) -> str:
    """Returns a line: bytes on each server, seconds of each step, and the slowest range."""
    sizes = ", ".join(f"{index}: {decimal(infos[index].num_bytes, 'B')}" for index in sorted(infos))
    text = f"{name.partition('/')[2]}  on server {sizes}"
    if found is None:
        return text
    parts, about = found
    text += "; " + ", ".join(f"{step} {seconds:.2f} s" for step, seconds in about["times"].items())
    if parts:
        slowest = max(parts, key=lambda part: part.seconds)
        end = "" if slowest.end is None else slowest.end
        text += f"; slowest of {len(parts)} ranges {slowest.tensor} {slowest.begin}–{end}: {slowest.seconds:.2f} s"
    return text
