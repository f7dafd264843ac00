"""The mark of the methods of the Engine protocol that a front end calls and waits for.

`core.remote` needs no more than the mark and the annotations of a method to carry the call to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

_ATTRIBUTE = "engine_call"

M = TypeVar("M", bound=Callable[..., Any])


class ModelChange(Enum):
    """What a call does to the model that its first argument names."""

    LOAD = "load"
    UNLOAD = "unload"


class HoldChange(Enum):
    """What a call does to the holds of its caller. A hold is a model's name and a number.

    TAKE has the name as its first argument and returns the number; RELEASE has both as arguments.
    """

    TAKE = "take"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark:
    """`blocks`: the method may wait for storage, for a load or until memory is free. `change`: None if it only asks.
    `hold`: None if it has nothing to do with holds. `changes_state`: the front ends must know of the new state of the
    engine before the caller has its answer.
    """

    blocks: bool = False
    change: ModelChange | None = None
    hold: HoldChange | None = None
    changes_state: bool = False


def call(
    *,
    blocks: bool = False,
    change: ModelChange | None = None,
    hold: HoldChange | None = None,
    changes_state: bool = False,
) -> Callable[[M], M]:
    """Mark a method of the protocol. All of its parameters and its result need annotations."""

    def marked(method: M) -> M:
        mark = CallMark(blocks=blocks, change=change, hold=hold, changes_state=changes_state or change is not None)
        setattr(method, _ATTRIBUTE, mark)
        return method

    return marked


def mark_of(method: object) -> CallMark | None:
    """The mark of a method; None if front ends do not call it this way."""
    mark: CallMark | None = getattr(method, _ATTRIBUTE, None)
    return mark
