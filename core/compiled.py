"""The decorator by which mypyc lets interpreted classes inherit from a compiled one: docs/compiled.md.

mypyc knows it by the name that `mypy_extensions` gives it, which an installation does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    Kind = TypeVar("Kind", bound=type)

    def mypyc_attr(*, allow_interpreted_subclasses: bool) -> Callable[[Kind], Kind]:
        """Return the class as it is: the decorator is for the compiler."""
        return lambda kind: kind
