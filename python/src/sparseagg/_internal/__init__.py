"""What the package is made of. Users import none of it: its names change without notice.

From the top down; each folder imports only those below it, which ``lint-imports`` checks (python/pyproject.toml):

    commands   the command ``sparseagg``
    client     calls to a server, blocking and for asyncio; rounds in this process with the same methods
    local      the engine in this process, and servers that this process starts
    wire       keys and values as bytes of the protocol
    results    results, and what the server says of rounds, submissions and tasks
    updates    callers' updates: arrays as keys and rows, client ids, weights
    spec       what a round computes
    base       checks of arguments, types, errors' texts; arrays, sparse tensors and tables of other libraries
"""
