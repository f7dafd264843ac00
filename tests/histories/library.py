"""`import trident`: a process with the server and ports, and clients in its threads."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import trident
from tests.contract.servers.server import ServerProcess
from tests.histories.board import Board, Failed, Outcome
from tests.histories.clients import Client, Plan, watch
from tests.histories.kinds import BY_KIND, FUNCTIONS, WIDTH, Answer, Question, numbers
from tests.threads import server_threads
from tests.waiting import until

DEPTH = 64
_STATUS = {"INVALID_ARG": 400, "NOT_FOUND": 404, "UNAVAILABLE": 503, "CANCELLED": 499}


class LibraryAsker:
    """Blocking calls, futures, coroutines, and streams."""

    def __init__(self, server: trident.Server) -> None:
        self._server = server

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        if questions[0].marks is None and random.random() < 0.1:
            self._give_up(questions[0], random)
        if questions[0].kind.responses == "many":
            return [self._stream(question) for question in questions]
        form = "infer" if questions[0].marks is not None else random.choice(("infer", "submit", "async"))
        if form == "infer":
            return [self._infer(question) for question in questions]
        if form == "async":
            return asyncio.run(self._gather(questions))
        found = [self._submit(question) for question in questions]
        return [each if isinstance(each, Outcome) else _result(each) for each in found]

    def _model(self, question: Question) -> Any:
        options: dict[str, Any] = {"id": question.id}
        parameters = dict(question.parameters)
        if "priority" in parameters:
            options["priority"] = parameters.pop("priority")
        if question.marks is not None:
            names = ("sequence_start", "sequence_end")
            options |= dict(zip(names, question.marks, strict=True), sequence_id=question.sequence)
        return self._server.model(question.kind.name).with_options(**options, parameters=parameters)

    def _infer(self, question: Question) -> Outcome:
        try:
            return _answered(self._model(question).infer(_inputs(question)))
        except trident.ServerError as error:
            return _failed(error)

    async def _gather(self, questions: Sequence[Question]) -> list[Outcome]:
        async def one(question: Question) -> Outcome:
            try:
                return _answered(await self._model(question).infer_async(_inputs(question)))
            except trident.ServerError as error:
                return _failed(error)

        return await asyncio.gather(*(one(question) for question in questions))

    def _submit(self, question: Question) -> Any:
        try:
            return self._model(question).submit(_inputs(question))
        except trident.ServerError as error:
            return _failed(error)

    def _give_up(self, question: Question, random: Random) -> None:
        """Ask, and cancel the request at once or after its first response."""
        try:
            if question.kind.responses == "many":
                with self._model(question).stream(_inputs(question)) as stream:
                    if random.random() < 0.5:
                        next(stream, None)
            else:
                self._model(question).submit(_inputs(question)).cancel()
        except trident.ServerError:
            return  # the model is away, as the next request says

    def _stream(self, question: Question) -> Outcome:
        found = Outcome(id=str(question.id))
        try:
            for outputs in self._model(question).stream(_inputs(question)):
                found.answers.append(dict(outputs))
                found.id = outputs.id
        except trident.ServerError as error:
            return _failed(error)
        return found

    def close(self) -> None:
        """Do nothing: nothing is open between two calls."""


def _inputs(question: Question) -> dict[str, Any]:
    return {name: array for name, (_, array) in question.inputs.items()}


def _answered(outputs: Any) -> Outcome:
    answer: Answer = dict(outputs)
    return Outcome([answer], id=outputs.id)


def _result(future: Any) -> Outcome:
    try:
        return _answered(future.result(60))
    except trident.ServerError as error:
        return _failed(error)


def _failed(error: trident.ServerError) -> Outcome:
    return Outcome(status=_STATUS.get(error.code.name, 500), error=f"{type(error).__name__} {error}")


class LibraryClient(Client):
    """Asks in the process of the server."""

    def __init__(self, plan: Plan, board: Board, number: int, server: trident.Server) -> None:
        super().__init__(plan, board, number)
        self._askers["library"] = self._library = LibraryAsker(server)

    def _close(self) -> None:
        super()._close()
        self._askers["library"] = self._library


class LibraryRush(Client):
    """Futures of `plain`, many at once."""

    def __init__(self, plan: Plan, board: Board, number: int, server: trident.Server) -> None:
        super().__init__(plan, board, number)
        self._model = server.model("plain")

    def _step(self, tag: int, random: Random, more: dict[str, Any]) -> int:
        more |= {"tag": tag, "model": "plain", "transport": "library, many", "start": time.monotonic()}
        span = self.judge.begin(BY_KIND["plain"])
        given = numbers(tag, DEPTH * WIDTH).astype(np.int32).reshape(DEPTH, 1, WIDTH)
        try:
            answers = np.stack([each.result(60)["OUT"] for each in [self._model.submit(IN=row) for row in given]])
        except trident.ServerError as error:
            if not self.judge.causes(span):
                raise Failed("lost", f"{type(error).__name__} {error}") from None
            self.judge.explained["library, many"] += DEPTH
            return DEPTH
        finally:
            more["start"] = None
        weights = (answers - given).reshape(DEPTH, WIDTH)
        if (weights != weights[:, :1]).any():
            raise Failed("wrong", f"differences {weights.tolist()}")
        for weight in set(weights[:, 0].tolist()):
            self.judge.check_weights(span, (weight,))
        self.judge.note(span, "library, many", tag, "")
        self.judge.count("plain", "library, many", DEPTH)
        return DEPTH


def run_library(
    repository: Path, options: dict[str, Any], log: Path, plan: Plan, board: Board, numbers_: Sequence[int]
) -> None:
    """The whole of the server's process: its own session."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.basicConfig(level=logging.INFO)
    with trident.Server(repository, functions=FUNCTIONS, **options) as server:
        server.serve(http_port=plan.http, grpc_port=plan.grpc)
        inside = Plan(**{**vars(plan), "transports": ("library",)})
        clients: list[Client] = [LibraryClient(inside, board, number, server) for number in numbers_]
        if plan.rush:
            clients[-1] = LibraryRush(inside, board, numbers_[-1], server)
        watch(clients, board)
    until(lambda: not server_threads(), lambda: f"these threads are left: {server_threads()}", limit_s=20)
    left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert not left, f"these threads are left: {left}"


class LibraryProcess(ServerProcess):
    """A process with the library, which answers HTTP and gRPC, too, as the other shapes do."""

    def __init__(self, context: Any, repository: Path, log: Path, options: dict[str, Any]) -> None:
        super().__init__(repository, log)
        self._context = context
        self._arguments = options

    def prepare(self, plan: Plan, board: Board, numbers_: Sequence[int]) -> None:
        self.log.touch()
        arguments = (self.repository, self._arguments, self.log, plan, board, numbers_)
        self._process = self._context.Process(target=run_library, args=arguments)

    def __enter__(self) -> LibraryProcess:
        self._process.start()
        self.process = _Started(self._process)
        self.wait_until_ready()
        return self

    def stop(self) -> int:
        """The end of the run ends it."""
        return self.process.wait(45.0)


class _Started:
    """A process of multiprocessing, asked as one of subprocess."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "the process with the library does not end"
        return self._process.exitcode
