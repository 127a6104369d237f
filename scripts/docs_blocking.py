"""Shows the blocking clients' methods in the reference.

`submit = blocking(async_round.Round.submit)` is an attribute to who reads the source. For the site it becomes a
function, with the parameters and the docstring of the method that it runs.
"""

from __future__ import annotations

from typing import Any

import griffe


class BlockingMethods(griffe.Extension):
    """An extension of griffe, which reads the sources for mkdocstrings."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Changes the class, after the whole package was read."""
        for name, member in list(cls.members.items()):
            value = None if member.is_alias or not member.is_attribute else member.value
            if isinstance(value, griffe.ExprCall) and str(value.function) in ("blocking", "blocking_iterator"):
                owner, _, of = value.arguments[0].canonical_path.removeprefix(f"{cls.package.name}.").rpartition(".")
                found = cls.package[owner].all_members[of]
                method = found.final_target if found.is_alias else found
                made = griffe.Function(
                    name,
                    parameters=method.parameters,
                    returns=method.returns,
                    lineno=member.lineno,
                    docstring=method.docstring,
                )
                cls.set_member(name, made)
