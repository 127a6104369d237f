"""The command ``sparseagg``."""
