"""State that the processes of a run share, and the judgement of each answer.

An answer is judged by numbers that only grow, read before its request was sent and after it came: the weights that
each model may have, and the faults that have begun and have ended.
"""

from __future__ import annotations

import enum
import json
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

from tests.histories.kinds import KINDS, Answer, Kind, Question, Weights, WrongAnswer


class Cause(enum.IntEnum):
    """A fault that explains errors."""

    RELOAD = 0  # ends sequences
    UNLOAD = 1
    DEATH = 2


SERVER = "the server"
_SCOPES = {name: at for at, name in enumerate([SERVER, *(kind.name for kind in KINDS)])}
_NO_START = "must specify the START flag"
# Statuses of errors that a cause explains. 0 is a lost connection.
_EXPLAINED = {Cause.UNLOAD: (400, 404, 503), Cause.DEATH: (0, 400, 404, 500, 503)}
_RECENT = 300


@dataclass
class Outcome:
    """The end of a request: answers, or an error with the status of HTTP; status 0 is a lost connection.

    `finals` counts the responses that said they were the last one, `after` those that came after it.
    """

    answers: list[Answer] = field(default_factory=list)
    status: int = 200
    error: str = ""
    id: str | None = None
    finals: int = 1
    after: int = 0


class Failed(Exception):
    """An answer is wrong, was lost, or came twice."""

    def __init__(self, verdict: str, text: str) -> None:
        super().__init__(f"{verdict}: {text}")
        self.verdict = verdict
        self.text = text


class Board:
    """The shared numbers. Made by the main process; `clients` is how many there are."""

    def __init__(self, context: SpawnContext, clients: int, folder: Path) -> None:
        self.folder = folder
        size = len(_SCOPES)
        self.least = context.RawArray("q", [1] * size)
        self.most = context.RawArray("q", [1] * size)
        self.begun = context.RawArray("q", size * len(Cause))
        self.ended = context.RawArray("q", size * len(Cause))
        self.answers = context.RawArray("q", clients)
        # 0: asking; 1: everybody pauses; 2: the end.
        self.phase = context.RawArray("q", 1)
        self.paused = context.RawArray("b", clients)

    @property
    def is_over(self) -> bool:
        return self.phase[0] == 2

    def begin(self, cause: Cause, *scopes: str) -> None:
        for scope in scopes:
            self.begun[_slot(scope, cause)] += 1

    def end(self, cause: Cause, *scopes: str) -> None:
        for scope in scopes:
            self.ended[_slot(scope, cause)] += 1

    def deaths(self) -> int:
        """How often the server, or a process of it, was killed and has come back."""
        return int(self.ended[_slot(SERVER, Cause.DEATH)])

    def weight(self, model: str) -> int:
        return self.most[_SCOPES[model]]

    def raise_most(self, model: str) -> int:
        """A new weight for the model, which it may have from now on."""
        self.most[_SCOPES[model]] += 1
        return self.most[_SCOPES[model]]

    def raise_least(self, model: str) -> None:
        """The model has the newest weight from now on."""
        self.least[_SCOPES[model]] = self.most[_SCOPES[model]]


def _slot(scope: str, cause: Cause) -> int:
    return _SCOPES[scope] * len(Cause) + cause


@dataclass(frozen=True)
class Span:
    """The time of a request, by the numbers at its start."""

    kind: Kind
    least: tuple[int, ...]
    ended: dict[int, int]
    start: float


@dataclass
class Event:
    """A line of the history."""

    client: int
    tag: int
    kind: str
    transport: str
    start: float
    end: float
    result: str


class Judge:
    """Judges the answers to one client. `counts` are by kind and transport, `explained` are errors by their causes."""

    def __init__(self, board: Board, client: int) -> None:
        self.board = board
        self.client = client
        self.counts: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()
        self.recent: deque[Event] = deque(maxlen=_RECENT)

    def begin(self, kind: Kind) -> Span:
        board = self.board
        slots = [_slot(scope, cause) for scope in (SERVER, *kind.depends) for cause in Cause]
        least = tuple(board.least[_SCOPES[model]] for model in kind.models)
        return Span(kind, least, {slot: board.ended[slot] for slot in slots}, time.monotonic())

    def causes(self, span: Span) -> set[Cause]:
        """The faults that there were at any time since `span` began."""
        return {Cause(slot % len(Cause)) for slot, ended in span.ended.items() if self.board.begun[slot] > ended}

    def count(self, kind: str, transport: str, number: int = 1) -> None:
        self.counts[f"{kind} by {transport}"] += number
        self.board.answers[self.client] += number

    def note(self, span: Span, transport: str, tag: int, result: str) -> None:
        self.recent.append(
            Event(self.client, tag, span.kind.name, transport, span.start, time.monotonic(), result[:300])
        )

    def judge(self, span: Span, question: Question, outcome: Outcome, transport: str) -> bool:
        """Return True for a correct answer and False for an explained error; raise Failed otherwise."""
        try:
            is_answered = self._judge(span, question, outcome)
        except Failed as failure:
            self.note(span, transport, question.tag, str(failure))
            raise
        self.note(span, transport, question.tag, "" if is_answered else f"{outcome.status} {outcome.error}")
        if is_answered:
            self.count(span.kind.name, transport, max(1, len(outcome.answers)))
        elif not question.is_doubtful:
            time.sleep(0.01)  # or clients would take the processor that the server needs to come back
        return is_answered

    def _judge(self, span: Span, question: Question, outcome: Outcome) -> bool:
        if outcome.after or outcome.finals > 1:
            raise Failed("twice", f"{outcome.finals} final responses, {outcome.after} after the first of them")
        if outcome.status != 200:
            self._explain(span, question, outcome)
            return False
        if outcome.finals != 1:
            raise Failed("lost", f"no final response after {len(outcome.answers)}")
        if outcome.id is not None and not question.is_doubtful and outcome.id != question.id:
            raise Failed("wrong", f"id {outcome.id!r} instead of {question.id!r}")
        self.check(span, question, outcome.answers)
        return True

    def check(self, span: Span, question: Question, answers: Sequence[Answer]) -> None:
        """Check that the answers are those of a version that served."""
        try:
            weights = span.kind.weights(question, answers)
        except WrongAnswer as error:
            raise Failed("wrong", str(error)) from None
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise Failed("wrong", f"{len(answers)} answers, {type(error).__name__}: {error}") from error
        self.check_weights(span, weights)

    def check_weights(self, span: Span, weights: Weights) -> None:
        for model, weight, least in zip(span.kind.models, weights, span.least, strict=True):
            most = self.board.most[_SCOPES[model]]
            if weight is not None and not least <= weight <= most:
                raise Failed("wrong", f"weight {weight} of {model}, which had {least} to {most}")

    def _explain(self, span: Span, question: Question, outcome: Outcome) -> None:
        text = f"{outcome.status} {outcome.error}"
        if question.is_doubtful and outcome.status == 400:
            self.explained["unusual id or parameter"] += 1
            return
        if span.kind.may_find_no_memory and outcome.status == 503 and "memory" in outcome.error:
            self.explained["full memory"] += 1
            return
        causes = self.causes(span)
        for cause in causes:
            is_of_other = cause is Cause.UNLOAD and span.kind.asks_others and outcome.status == 500
            if outcome.status in _EXPLAINED.get(cause, ()) or is_of_other:
                self.explained[cause.name.lower()] += 1
                return
        if _NO_START in outcome.error and causes:
            self.explained["sequence ended"] += 1
            return
        raise Failed("lost", text)


def write_history(board: Board, judge: Judge, failure: Failed | None, more: dict[str, Any]) -> None:
    """For the main process: the recent results of this client."""
    document = {
        "client": judge.client,
        "counts": judge.counts,
        "explained": judge.explained,
        "recent": [asdict(event) for event in judge.recent],
        "failure": failure and {"verdict": failure.verdict, "text": failure.text, **more},
    }
    aside = board.folder / f".client-{judge.client}"
    aside.write_text(json.dumps(document))
    aside.replace(board.folder / f"client-{judge.client}.json")
