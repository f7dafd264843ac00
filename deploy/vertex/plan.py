"""The plan of an action: its calls in order, to be printed or made.

A plan is a generator. It yields a call and receives the answer, which later calls may need. If no calls are made, it
receives each call's stand-in, so that the same code produces the printed and the applied plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TextIO

from deploy.vertex.call import Call, CheckFailed

Steps = Generator[Call, Any, None]


class CallFailed(Exception):
    """A call was refused or not answered; the argument says why, for a person."""


class NotThere(CallFailed):
    """The subject of the call does not exist."""


class Caller(Protocol):
    """Makes calls."""

    def make(self, call: Call) -> Any:
        """The answer; for a long-running operation its result. Raises CallFailed."""


class Plan:
    """A plan, which can be used once: both methods run `steps`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def calls(self) -> list[Call]:
        """All calls, without making them."""
        found: list[Call] = []
        try:
            call = next(self._steps)
            while True:
                found.append(call)
                call = self._steps.send(call.stand_in)
        except StopIteration:
            return found

    def apply(self, caller: Caller, out: TextIO, sleep: Callable[[float], None]) -> int:
        """Make the calls and print a line for each. Returns the number of failed best-effort calls.

        Raises CallFailed or CheckFailed for the first other failure and makes no further calls.
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
        """The answer and whether the call failed; the answer is None if a best-effort call has none."""
        try:
            answer = caller.make(call)
            _print(call.report(answer), out)
            return answer, False
        except NotThere as error:
            if not call.best_effort:
                raise
            _print(f"it no longer exists: {error}", out)
            return None, False
        except (CallFailed, CheckFailed) as error:
            if not call.best_effort:
                raise
            _print(f"FAILED: {error}", out)
            return None, True


def _print(text: str, out: TextIO) -> None:
    for line in text.splitlines():
        print(f"  {line}", file=out, flush=True)
