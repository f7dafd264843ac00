"""A process with several clients, which ask until the run is over or an answer is wrong."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any

from tests.histories.board import Board, Failed, Judge, Outcome, write_history
from tests.histories.grpc_client import GrpcAsker, StreamAsker, can_say
from tests.histories.http_client import LIMIT_S, GenerateAsker, HttpAsker, MemoryAsker
from tests.histories.kinds import BY_KIND, Answer, Kind, Question
from tests.histories.many import Rush
from tests.histories.openai import OpenAIAsker
from tests.histories.platforms import PlatformAsker
from tests.histories.trouble import Trouble
from tests.histories.web_socket import SocketAsker


@dataclass(frozen=True)
class Plan:
    """Targets of the clients: the ports of the server, the models, the transports."""

    seed: int
    http: int
    grpc: int
    kinds: tuple[str, ...]
    transports: tuple[str, ...]
    # The last client of each process asks for as many answers as it gets.
    rush: bool
    trouble: bool
    sagemaker: int
    vertex: int


def asker_of(transport: str, plan: Plan, board: Board, client: int) -> Any:
    match transport:
        case "gRPC":
            return GrpcAsker(plan.grpc)
        case "gRPC stream":
            return StreamAsker(plan.grpc)
        case "WebSocket":
            return SocketAsker(plan.http)
        case "SageMaker":
            return PlatformAsker(plan.sagemaker, transport)
        case "Vertex":
            return PlatformAsker(plan.vertex, transport)
        case "embeddings" | "completions" | "chat":
            return OpenAIAsker(plan.http, transport)
        case "events" | "generate":
            return GenerateAsker(plan.http)
        case "shared memory":
            return MemoryAsker(plan.http, f"histories-{os.getpid()}-{client}", board.deaths)
        case _:
            return HttpAsker(plan.http, transport.removeprefix("HTTP "))


class Client(threading.Thread):
    """Asks one question after the other, or several at once. Which ones follows from the seed and its number."""

    def __init__(self, plan: Plan, board: Board, number: int) -> None:
        super().__init__(name=f"client-{number}")
        self.plan = plan
        self.board = board
        self.number = number
        self.judge = Judge(board, number)
        # What it asks now, for a failure.
        self.current: dict[str, Any] = {}
        self._askers: dict[str, Any] = {}
        self._deaths = board.deaths()
        kinds = [BY_KIND[name] for name in plan.kinds]
        self._all = kinds
        self._pairs = {kind: [each for each in kind.transports if each in plan.transports] for kind in kinds}
        self._kinds = [kind for kind in kinds if self._pairs[kind]]

    def run(self) -> None:
        failure, more = None, self.current
        tag = self.number << 40
        try:
            while not self.board.is_over and self._kinds:
                if self.board.phase[0] == 1:
                    self._pause()
                    continue
                more.clear()
                tag += self._step(tag, Random(self.plan.seed << 80 | tag), more)
        except Failed as error:
            failure = error
        except Exception:
            failure = Failed("client", traceback.format_exc())
        try:
            self._close()
        except Failed as error:
            failure = failure or error
        if failure is not None:
            self.board.phase[0] = 2
        write_history(self.board, self.judge, failure, more)

    def _pause(self) -> None:
        """Give everything back, and wait."""
        self.current.clear()
        self._close()
        self.board.paused[self.number] = 1
        while self.board.phase[0] == 1:
            time.sleep(0.02)
        self.board.paused[self.number] = 0

    def _close(self) -> None:
        for asker in self._askers.values():
            asker.close()
        self._askers.clear()

    def _step(self, tag: int, random: Random, more: dict[str, Any]) -> int:
        """Ask once. Returns the number of tags that this took."""
        if self.plan.trouble and random.random() < 0.1:
            more |= {"tag": tag, "transport": "trouble", "start": time.monotonic()}
            if "trouble" not in self._askers:
                self._askers["trouble"] = Trouble(self.plan.http, self.plan.grpc, self.judge, self._all)
            self._askers["trouble"].make(tag, random)
            more["start"] = None
            return 1
        kind = random.choice(self._kinds)
        transport = random.choice(self._pairs[kind])
        questions = self._questions(kind, tag, random, transport)
        if not questions:
            return 1
        more |= {"tag": tag, "model": kind.name, "transport": transport, "start": time.monotonic()}
        if self._deaths != (deaths := self.board.deaths()):
            # Their library may not have noticed yet that a connection to a killed process has ended.
            self._deaths = deaths
            for each in {"gRPC", "gRPC stream"} & self._askers.keys():
                self._askers.pop(each).close()
        if transport not in self._askers:
            self._askers[transport] = asker_of(transport, self.plan, self.board, self.number)
        span = self.judge.begin(kind)
        outcomes: Sequence[Outcome] = self._askers[transport].ask(questions, random)
        more |= {"start": None, "began": span.start, "end": time.monotonic()}
        for question, outcome in zip(questions, outcomes, strict=False):
            more["tag"] = question.tag
            more["found"] = [_document(answer) for answer in outcome.answers[:3]]
            if not self.judge.judge(span, question, outcome, transport) and kind.is_sequence:
                break
        return len(questions)

    def _questions(self, kind: Kind, tag: int, random: Random, transport: str) -> list[Question]:
        if kind.is_sequence:
            return _named(kind.sequence(tag, random), transport)  # type: ignore[attr-defined]
        count = random.choice((1, 1, 1, 2, 8))
        questions = [kind.question(tag + number, random) for number in range(count)]
        if transport == "generate":  # whose flat lists are one row
            questions = [each for each in questions if each.rows == 1]
        if transport.startswith("HTTP"):
            # A refused request may end its connection.
            return questions[:1] if any(each.is_doubtful for each in questions) else questions
        if transport == "shared memory":
            return questions[:1]
        fits: Callable[[Question], bool] = can_say if transport.startswith("gRPC") else _is_usual
        for at, question in enumerate(questions):
            while not fits(questions[at]):
                questions[at] = kind.question(question.tag, random)
        return _named(questions, transport)


def _document(answer: Answer) -> dict[str, Any]:
    """The start of each output, for whoever looks for the request that it belongs to."""
    arrays = {name: array for name, array in answer.items() if array.dtype != object}
    return {name: [array.dtype.str, array.shape, array.reshape(-1)[:64].tolist()] for name, array in arrays.items()}


def _named(questions: list[Question], transport: str) -> list[Question]:
    """On streams the ids tell the answers apart."""
    if transport in ("gRPC stream", "WebSocket"):
        return [replace(question, id=f"tag-{question.tag}") for question in questions]
    return questions


def _is_usual(question: Question) -> bool:
    return not question.is_doubtful


class RushClient(Client):
    """Asks for as many answers as it gets."""

    _rush: Rush | None = None

    def _step(self, tag: int, random: Random, more: dict[str, Any]) -> int:
        if self._rush is None:
            self._rush = Rush(self.plan.http, self.judge, self.plan.kinds)
        more |= {"tag": tag, "transport": "rush", "start": time.monotonic()}
        used = self._rush.ask(tag)
        more["start"] = None
        return used

    def _close(self) -> None:
        if self._rush is not None:
            self._rush.finish()
        self._rush = None


def run_clients(plan: Plan, board: Board, numbers: Sequence[int]) -> None:
    """The whole of a process."""
    clients = [Client(plan, board, number) for number in numbers]
    if plan.rush:
        clients[-1] = RushClient(plan, board, numbers[-1])
    watch(clients, board)


def watch(clients: Sequence[Client], board: Board) -> None:
    """Run them. One that gets no answer for LIMIT_S and a bit ends the process."""
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        time.sleep(0.1)
        for client in clients:
            current = dict(client.current)
            if client.is_alive() and (current.get("start") or inf) < time.monotonic() - LIMIT_S - 10:
                failure = Failed("lost", f"no answer in {LIMIT_S} s")
                board.phase[0] = 2
                for each in clients:
                    write_history(board, each.judge, failure if each is client else None, current)
                os._exit(1)
