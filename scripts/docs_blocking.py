"""Shows the blocking clients' methods in the reference.

`submit = blocking(async_round.Round.submit)` is an attribute to who reads the source. For the site it becomes a
function, with the parameters and the docstring of the method that it runs.
"""

from __future__ import annotations

from typing import Any

import griffe

_MAKERS = {"blocking", "blocking_iterator"}


class BlockingMethods(griffe.Extension):
    """An extension of griffe, which reads the sources for mkdocstrings."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Changes every class of the package."""
        _visit(pkg, pkg)


def _visit(pkg: griffe.Module, scope: griffe.Module | griffe.Class) -> None:
    for name, member in list(scope.members.items()):
        if member.is_alias:
            continue
        if member.is_module or member.is_class:
            _visit(pkg, member)
        elif member.is_attribute and scope.is_class:
            method = _method_behind(pkg, member)
            if method is not None:
                scope.set_member(name, _function(name, method, member.lineno))


def _method_behind(pkg: griffe.Module, attribute: griffe.Attribute) -> griffe.Function | None:
    value = attribute.value
    if not isinstance(value, griffe.ExprCall) or str(value.function) not in _MAKERS:
        return None
    target = value.arguments[0]
    owner, _, method = target.canonical_path.removeprefix(f"{pkg.name}.").rpartition(".")
    found = pkg[owner].all_members[method]
    return found.final_target if found.is_alias else found


def _function(name: str, method: griffe.Function, lineno: int | None) -> griffe.Function:
    made = griffe.Function(
        name, parameters=method.parameters, returns=method.returns, lineno=lineno, docstring=method.docstring
    )
    made.labels.discard("async")
    return made
