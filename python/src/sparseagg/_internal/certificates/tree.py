"""The Merkle tree of RFC 9162 over SHA-256: its root, and proofs of inclusion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

__all__ = ["leaf_hash", "path_of", "root_of", "root_of_path"]


def leaf_hash(leaf: bytes) -> bytes:
    """Returns the hash of a leaf."""
    return hashlib.sha256(b"\0" + leaf).digest()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Returns the root of the tree of ``leaves``, which are not hashed yet (RFC 9162, 2.1.1)."""
    level = [leaf_hash(leaf) for leaf in leaves]
    if not level:
        return hashlib.sha256().digest()
    while len(level) > 1:
        odd = level[len(level) & ~1 :]  # a node without a sibling moves up as it is
        level = [_node(left, right) for left, right in zip(level[::2], level[1::2])] + odd
    return level[0]


def path_of(leaves: Iterable[bytes], index: int) -> tuple[bytes, ...]:
    """Returns the proof that leaf ``index`` is in the tree: siblings, from the leaf up (RFC 9162, 2.1.3.1)."""
    level, path = [leaf_hash(leaf) for leaf in leaves], []
    while len(level) > 1:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        odd = level[len(level) & ~1 :]
        level = [_node(left, right) for left, right in zip(level[::2], level[1::2])] + odd
        index //= 2
    return tuple(path)


def root_of_path(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Returns the root that a proof of inclusion gives (RFC 9162, 2.1.3.2); None if the proof has a wrong length."""
    if not 0 <= index < size:
        return None
    node, last, left = leaf_hash(leaf), size - 1, list(path)
    while last > 0:
        if index % 2 == 1 or index < last:  # it has a sibling
            if not left:
                return None
            sibling = left.pop(0)
            node = _node(sibling, node) if index % 2 == 1 else _node(node, sibling)
        index, last = index // 2, last // 2
    return None if left else node


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
