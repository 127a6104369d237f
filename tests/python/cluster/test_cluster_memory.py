"""Ranges that are larger than the memory of a reducer, and partials, of rounds of a cluster."""

from __future__ import annotations

import numpy as np
import pytest
import sparseagg as sa
from every_client import digest
from sparseagg.cluster import Cluster, export_submissions
from sparseagg.cluster.reduce import Roster, ServerPages, batches


def updates_of(clients: int, tuples: int, num_rows: int) -> dict[str, tuple]:
    rng = np.random.default_rng(7)
    return {
        f"c{i:02}": (rng.integers(0, num_rows, tuples), rng.standard_normal(tuples).astype("f4"))
        for i in range(clients)
    }


def submitted(cluster, spec, updates):
    opened = cluster.create_round(spec)
    for client_id, update in updates.items():
        opened.submit(client_id, update)
    return opened


def test_range_larger_than_memory_has_the_same_bits(addresses):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=5000)], op="mean", return_counts=True)
    updates = updates_of(30, 20_000, 5000)  # 160 KB each, 4.8 MB together
    with Cluster(addresses, ranges=1, reducers=1, memory_limit=1_500_000) as cluster:
        opened = submitted(cluster, spec, updates)
        assert digest(opened.finish()) == digest(sa.aggregate(updates, spec))
    with Cluster(addresses, ranges=1, reducers=1, memory_limit=300_000) as cluster:
        resumed = cluster.resume(opened.name)
        # One update with its sums takes more than the half.
        with pytest.raises(sa.errors.ResourceExhaustedError, match="beyond the memory_limit 150000"):
            resumed.finish()
    with Cluster(addresses, memory_limit=300_000) as cluster:  # in ranges that fit
        resumed = cluster.resume(opened.name)
        assert digest(resumed.finish()) == digest(sa.aggregate(updates, spec))
        resumed.delete()


def test_a_dense_tensor_leaves_the_samples_of_a_sparse_one(addresses):
    spec = sa.RoundSpec(
        [sa.TensorSpec("d", "float32", num_rows=400_000, layout="dense"), sa.TensorSpec("s", "float32", num_rows=0)],
        op="sum",
    )
    rng = np.random.default_rng(10)
    with Cluster(addresses, ranges=8, reducers=1) as cluster, cluster.create_round(spec) as opened:
        for i in range(3):
            sparse = np.sort(rng.integers(0, 1 << 60, 500, np.uint64)), np.ones(500, np.float32)
            opened.submit(f"c{i}", {"d": np.ones(400_000, np.float32), "s": sparse})
        opened.start_merge()
        sizes = [part.num_rows for part in opened._parts("s", None)]
        assert len(sizes) == 8
        assert max(sizes) < 1.5 * sum(sizes) / 8


@pytest.mark.parametrize("page_bytes", [1, 1000, 50_000, 1 << 20])
def test_submissions_come_in_order_whatever_the_pages(addresses, page_bytes):
    num = 300 if page_bytes < 1000 else 4000
    updates = updates_of(9, num, 1 << 20)
    updates["c0"] = (np.empty(0, np.int64), np.empty(0, np.float32))
    if page_bytes == 1:
        updates = {each: (keys[:20], values[:20]) for each, (keys, values) in updates.items()}
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=1 << 20)])
    with Cluster(addresses) as cluster, submitted(cluster, spec, updates) as opened:
        opened.seal()
        rounds = [sa.Client(address).get_round(opened.name) for address in addresses]
        rosters = [Roster(list(export_submissions(each, keys=(0, 0))), np.ones(0), None) for each in rounds]
        servers = [ServerPages(each, "v", roster, (0, None), page_bytes) for each, roster in zip(rounds, rosters)]
        again = {}
        for batch in batches(servers):
            parts = {
                roster.ids[place]: page.part(place, place + 1)
                for roster, page in batch
                for place in range(page.first, page.end)
            }
            again.update({each: (parts[each].keys, parts[each].values) for each in sorted(parts)})
        assert list(again) == sorted(updates)
        if page_bytes > 1:
            short = rosters[0]._replace(ids=rosters[0].ids[1:])  # as if one had been withdrawn
            with pytest.raises(sa.errors.InternalError, match=rf"of {len(rosters[0].ids)} came, after 0 of "):
                list(batches([ServerPages(rounds[0], "v", short, (0, None), page_bytes)]))
        assert digest(sa.aggregate(again, spec)) == digest(sa.aggregate(updates, spec))


def test_partials_are_cut_into_ranges_that_fit(addresses):
    spec = sa.RoundSpec([sa.TensorSpec("v", "int64", num_rows=1 << 20)], op="sum", return_counts=True)
    updates = {
        each: (keys, (values * 9).astype("i8")) for each, (keys, values) in updates_of(12, 9000, 1 << 20).items()
    }
    with Cluster(addresses, memory_limit=1_000_000) as cluster, submitted(cluster, spec, updates) as opened:
        assert digest(opened.finish()) == digest(sa.aggregate(updates, spec))


def test_a_server_with_all_submissions_stays_open(addresses):
    spec = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=50)], numerics="binned", max_submissions=4)
    updates = {f"c{i}": ([i], [0.1 + i]) for i in range(4)}
    with Cluster(addresses[:1]) as cluster, cluster.create_round(spec) as opened:
        for client_id, update in updates.items():
            opened.submit(client_id, update)
        with pytest.raises(sa.errors.ResourceExhaustedError, match="4 of max_submissions 4"):
            opened.submit("more", ([0], [1.0]))
        assert digest(opened.finish()) == digest(sa.aggregate(updates, spec))
