"""Requests on a WebSocket: all sent before the first answer is awaited."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from tests.contract.servers.ports import HOST
from tests.histories.board import Outcome
from tests.histories.http_client import LIMIT_S, answer_of, infer_body
from tests.histories.kinds import Question


class SocketAsker:
    """One socket for each model. Ids, which are unique, tell the answers apart."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: dict[str, ClientConnection] = {}

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        model = questions[0].kind.name
        found: dict[str, Outcome] = {}
        sent = [self._message(question, random, found) for question in questions]
        try:
            if model not in self._sockets or self._sockets[model].state is not State.OPEN:
                address = f"ws://{HOST}:{self._port}/v2/models/{model}/stream"
                self._sockets[model] = connect(address, max_size=None, open_timeout=LIMIT_S, ping_interval=None)
            stream = self._sockets[model]
            for message in sent:
                stream.send(message)
            while any(not each.finals for each in found.values()):
                self._note(stream.recv(LIMIT_S), found)
            if random.random() < 0.05:
                self._end(model, found)
        except InvalidHandshake as error:
            response = getattr(error, "response", None)
            problem = Outcome(status=response.status_code if response else 0, error=str(error))
            return [problem] * len(questions)
        except (OSError, ConnectionClosed) as error:
            self._sockets.pop(model, None)
            lost = Outcome(status=0, error=f"{type(error).__name__} {error}")
            return [each if each.finals else lost for each in found.values()]
        return list(found.values())

    def _message(self, question: Question, random: Random, found: dict[str, Outcome]) -> bytes | str:
        found[str(question.id)] = Outcome(finals=0)
        form = random.choice(("JSON", "mixed", "binary"))
        body, size = infer_body(question, form, random)
        if size is None:
            return body.decode()
        return size.to_bytes(4, "little") + body

    def _note(self, received: bytes | str, found: dict[str, Outcome]) -> None:
        if isinstance(received, str):
            text = received.encode()
            document: dict[str, Any] = json.loads(text)
            size = None
        else:
            size, text = int.from_bytes(received[:4], "little"), received[4:]
            document = json.loads(text[:size])
        one = found.get(document.get("id", ""))
        if one is None:
            for each in found.values():
                each.after += 1
                each.error = f"a message with the id {document.get('id')!r}"
            return
        if one.finals:
            one.after += 1
        if document["parameters"]["triton_final_response"]:
            one.finals += 1
        if "error" in document:
            # The socket tells no status. That of a lost process is 503.
            one.status, one.error = 503, document["error"]
        elif document.get("outputs"):
            one.answers.append(answer_of(text, size)[0])

    def _end(self, model: str, found: dict[str, Outcome]) -> None:
        """Close the socket: nothing more may come."""
        stream = self._sockets.pop(model)
        stream.close()
        try:
            while True:
                self._note(stream.recv(1), found)
        except (ConnectionClosed, TimeoutError):
            return

    def close(self) -> None:
        for stream in self._sockets.values():
            stream.close()
