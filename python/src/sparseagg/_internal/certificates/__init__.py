"""Certificates of rounds: their digests and trees, their verification, and bundles that can be computed again."""
