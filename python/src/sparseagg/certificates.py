"""Certificates of rounds: signed statements that anyone can check by computing the round again.

    pem = pathlib.Path("certificate.pub").read_bytes()
    sparseagg.certificates.verify(rnd.certificate(), pem, receipt=rnd.receipt("client-7"))

``verify`` needs the package ``cryptography``: ``pip install cryptography``. docs/certificates.md says what a
certificate proves, and what it does not.
"""

from sparseagg._internal.certificates.bundle import replay
from sparseagg._internal.certificates.envelope import VerificationError
from sparseagg._internal.certificates.verify import verify
from sparseagg._internal.results.certificates import Certificate, Leaves, SubmissionReceipt

__all__ = ["Certificate", "Leaves", "SubmissionReceipt", "VerificationError", "replay", "verify"]
