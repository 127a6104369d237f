"""What a server has signed about a round and its submissions."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

from google.protobuf import json_format

from sparseagg._internal.base.fields import read
from sparseagg.errors import InvalidArgumentError
from sparseagg.v1 import aggregation_pb2 as pb

__all__ = ["Certificate", "Leaves", "SubmissionReceipt"]


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The certificate of a round. Not verified: ``sparseagg.certificates.verify`` does that.

    Attributes:
        envelope: a DSSE envelope in JSON, as the server has signed it.
    """

    envelope: bytes

    @property
    def statement(self) -> dict[str, Any]:
        """The in-toto statement in the envelope."""
        statement: dict[str, Any] = json.loads(base64.b64decode(json.loads(self.envelope)["payload"]))
        return statement


@dataclasses.dataclass(frozen=True)
class Leaves:
    """The leaves of a round with a certificate. They have secret salts: whoever knows one can recognise its submission.

    Attributes:
        counted: of each client whose submission counts, in the bytewise order of client ids: that of the tree.
        withdrawn: of submissions that were withdrawn, in no order.
    """

    counted: dict[str, bytes]
    withdrawn: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True)
class SubmissionReceipt:
    """What a client can hold against the server. Not verified: ``sparseagg.certificates.verify`` does that.

    Attributes:
        round: name of the round, "rounds/{id}".
        client_id: whose submission it is.
        leaf: the submission's leaf of the tree, in CBOR. Its salt is secret: show it only to whom you show the receipt.
        promise: a DSSE envelope in JSON: the server promises to count a submission with this leaf.
        leaf_index: the place of the leaf in the tree; None: the receipt is older than the certificate.
        tree_size: number of leaves.
        path: hashes of siblings, from the leaf up.
    """

    round: str
    client_id: str
    leaf: bytes
    promise: bytes
    leaf_index: int | None = None
    tree_size: int = 0
    path: tuple[bytes, ...] = ()

    @classmethod
    def from_proto(cls, proto: pb.SubmissionReceipt) -> SubmissionReceipt:
        """Returns the values of a message."""
        return read(cls, proto)

    def to_json(self) -> str:
        """Returns the receipt in JSON, as the HTTP gateway gives it."""
        proto = pb.SubmissionReceipt(
            round=self.round,
            client_id=self.client_id,
            leaf=self.leaf,
            promise=self.promise,
            leaf_index=self.leaf_index,
            tree_size=self.tree_size,
            path=self.path,
        )
        return str(json_format.MessageToJson(proto))

    @classmethod
    def from_json(cls, text: str | bytes) -> SubmissionReceipt:
        """Returns the receipt in a text of ``to_json``; ``InvalidArgumentError`` if there is none."""
        try:
            return cls.from_proto(json_format.Parse(text, pb.SubmissionReceipt()))
        except (json_format.ParseError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"it is no receipt in JSON: {error}") from error
