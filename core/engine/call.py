"""Marks the methods of the Engine protocol that a front end calls and waits for.

The mark and the annotations of the method are all that `core.remote` needs to carry the call to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_ATTRIBUTE = "engine_call"

M = TypeVar("M", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark:
    """`blocks`: the method may wait for storage, for a load or until memory is free. `changes_models`: when it returns,
    another set of models may be loaded than before."""

    blocks: bool = False
    changes_models: bool = False


def call(*, blocks: bool = False, changes_models: bool = False) -> Callable[[M], M]:
    """Mark a method of the protocol. All of its parameters and its result need annotations."""

    def mark(method: M) -> M:
        setattr(method, _ATTRIBUTE, CallMark(blocks=blocks, changes_models=changes_models))
        return method

    return mark


def mark_of(method: object) -> CallMark | None:
    """The mark of a method; None if front ends do not call it this way."""
    mark: CallMark | None = getattr(method, _ATTRIBUTE, None)
    return mark
