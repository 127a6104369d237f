"""polars on one thread, which its environment sets."""

from contestants.polars_ import DISTRIBUTION, contestants

__all__ = ["DISTRIBUTION", "contestants"]
