"""polars on one thread, which its environment sets."""

from contestants.polars_ import contestants

__all__ = ["contestants"]
