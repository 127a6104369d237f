#!/usr/bin/env python3
"""Prints the memory and disk that rounds of one tensor need at a server (docs/howto/size.md)."""

from __future__ import annotations

import argparse

MIB = 2**20


def size(args: argparse.Namespace) -> dict[str, float]:
    """Returns bytes by name: what the server reserves for rounds that are open at once, and what the machine needs."""
    is_dense = args.rows == args.num_rows  # which is sent without keys
    key = 0 if is_dense else 4 if 0 < args.num_rows <= 2**32 else 8
    row = key + args.width * args.value_bytes  # of an update and of the result
    # At most; fewer where clients send the same rows.
    distinct = min(args.clients * args.rows, args.num_rows or args.clients * args.rows)
    sent = args.clients * args.rows * row
    if args.numerics == "canonical":
        open_round: float = sent + distinct * row
    else:  # sums of 17 bytes a value, of float64 25; sparse ones are twice there while submissions are merged
        sums = distinct * (key + (25 if args.value_bytes == 8 else 17) * args.width)
        waiting = min(sent, max(64 * MIB, sums / 10 if is_dense else sums))
        open_round = sums + (sent if args.keep_submissions else waiting + (distinct * row if is_dense else sums))
    share = args.rounds * open_round + args.uploads * 2 * args.rows * row
    limit = (share + 64 * MIB) * 16 / 13
    if args.data_dir:  # which has a sixteenth of the limit and 4 MiB, up to 132 MiB
        limit = min((share + 68 * MIB) * 16 / 12, (share + 196 * MIB) * 16 / 13)
    limit = max(256 * MIB, limit)
    return {
        "sent by all clients": sent,
        "an open round holds": open_round,
        "a round that is done holds": distinct * row,
        "--memory-limit": limit,
        "memory of the container or unit": 1.1 * limit,
        "disk, with --data-dir": args.rounds * sent + 64 * MIB,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="rows that one client sends; all: a dense tensor")
    parser.add_argument("--width", type=int, default=1, help="values in a row")
    parser.add_argument("--num-rows", type=int, default=0, help="rows of the table; 0: any 64-bit key")
    parser.add_argument("--value-bytes", type=int, default=4, help="of the tensor's dtype")
    parser.add_argument("--numerics", default="canonical", choices=["canonical", "binned"])
    parser.add_argument("--keep-submissions", action="store_true")
    parser.add_argument("--uploads", type=int, default=2, help="uploads under way at once")
    parser.add_argument("--rounds", type=int, default=1, help="rounds that are open at once")
    parser.add_argument("--data-dir", action="store_true")
    for name, each in size(parser.parse_args()).items():
        print(f"{name:32} {-int(-each // MIB):8} MiB")
