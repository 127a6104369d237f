"""The version of the package, which is that of pyproject.toml and of the server."""

__version__ = "0.1.0"
