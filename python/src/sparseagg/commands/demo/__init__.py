"""Federated training on real text, through a real server: ``sparseagg demo``.

Many clients, each with text of its own, learn one skip-gram model with negative sampling. What a client sends are rows
of two embedding tables: those of the tokens it has. The server merges them; the coordinator steps the tables.
"""
