"""The calls of an action, in order: to be shown, or to be made.

A plan is written as a generator: it yields a call and is given its answer, which the calls after it may need. Where no
call is made it is given the call's stand-in, so that what is shown and what is done come from the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TextIO

from deploy.vertex.call import Call, CheckFailed

Steps = Generator[Call, Any, None]


class CallFailed(Exception):
    """A call was refused, or never answered; the argument says why, for a person."""


class NotThere(CallFailed):
    """What the call is about does not exist."""


class Caller(Protocol):
    """What makes calls."""

    def make(self, call: Call) -> Any:
        """The answer; that of a long-running operation is its result. Raises CallFailed."""


class Plan:
    """Usable once: `steps` is run by either method."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def calls(self) -> list[Call]:
        """All calls, none of them made."""
        found: list[Call] = []
        try:
            call = next(self._steps)
            while True:
                found.append(call)
                call = self._steps.send(call.stand_in)
        except StopIteration:
            return found

    def apply(self, caller: Caller, out: TextIO, sleep: Callable[[float], None]) -> int:
        """Make the calls, with a line for each; how many failed that were best effort.

        Raises CallFailed and CheckFailed of the first other one; nothing is done after it.
        """
        failed = 0
        try:
            call = next(self._steps)
            while True:
                if call.after_s:
                    sleep(call.after_s)
                print(f"{call.title} ...", file=out, flush=True)
                answer, fault = self._made(call, caller, out)
                failed += fault
                call = self._steps.send(answer)
        except StopIteration:
            return failed

    def _made(self, call: Call, caller: Caller, out: TextIO) -> tuple[Any, bool]:
        """The answer, or None where a call of best effort has none; and whether it failed."""
        try:
            answer = caller.make(call)
            _say(call.report(answer), out)
            return answer, False
        except NotThere as error:
            if not call.best_effort:
                raise
            _say(f"there is none any more: {error}", out)
            return None, False
        except (CallFailed, CheckFailed) as error:
            if not call.best_effort:
                raise
            _say(f"FAILED: {error}", out)
            return None, True


def _say(text: str, out: TextIO) -> None:
    for line in text.splitlines():
        print(f"  {line}", file=out, flush=True)
