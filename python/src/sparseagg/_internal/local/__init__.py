"""The engine in this process."""
