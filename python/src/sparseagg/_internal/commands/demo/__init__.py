"""Federated training on real text, through a real server.

Many clients, each with its own text, learn one skip-gram model with negative sampling. A client sends the rows of two
embedding tables that belong to its tokens. The server merges the rows, and the coordinator updates the tables.
"""
