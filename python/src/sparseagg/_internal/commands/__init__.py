"""The command ``sparseagg`` and its subcommands."""
