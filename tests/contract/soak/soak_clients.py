"""Clients that ask the models of a soak in every way, and compute each answer themselves."""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from core.inference.tensors import Array
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.soak.soak_models import CACHED, CHAIN, PLAIN, PYTHON, WEIGHTED, WIDTH, WORDS

LIMIT_S = 60.0

# Outputs by name, of one response or of several.
Answer = Mapping[str, Array]


class WrongAnswer(Exception):
    """An answer that no weight explains, or one with a weight that was not served at that time."""


class Weights:
    """The weights that the models may answer with now: `least` was loaded, `most` is being loaded or was."""

    def __init__(self) -> None:
        self.least = dict.fromkeys(WEIGHTED, 1)
        self.most = dict.fromkeys(WEIGHTED, 1)


def weight_of(given: Array, answer: Answer) -> int:
    """The weight with which a model made the whole of `answer`."""
    weight = int(answer["SUM"].flat[0]) - int(given.flat[0])
    _compare(answer["SUM"], given + np.int32(weight))
    _compare(answer["PRODUCT"], given * np.int32(weight))
    return weight


def chain_weights(given: Array, answer: Answer) -> dict[str, int]:
    first = int(answer["FIRST"].flat[0]) - int(given.flat[0])
    _compare(answer["FIRST"], given + np.int32(first))
    return {PLAIN: first, PYTHON: weight_of(given * np.int32(first), answer)}


def words_weight(given: Array, answers: list[Array]) -> int:
    if len(answers) != given[0]:
        raise WrongAnswer(f"{len(answers)} responses to {given}")
    weight = int(answers[0][0]) // int(given[0])
    for number, answer in enumerate(answers):
        _compare(answer, given * np.int32(weight) + np.int32(number))
    return weight


def _compare(found: Array, wanted: Array) -> None:
    if found.shape != wanted.shape or not np.array_equal(found, wanted):
        raise WrongAnswer(f"{found.tolist()} instead of {wanted.tolist()}")


class SoakClient(threading.Thread):
    """Asks until `ending` is set, or until an answer is wrong, which `failure` then says. `asked` counts by kind."""

    def __init__(self, server: ServerProcess, weights: Weights, ending: threading.Event, seed: int) -> None:
        super().__init__(name=f"soak-{seed}")
        self.asked: Counter[str] = Counter()
        self.failure = ""
        self._server = server
        self._weights = weights
        self._ending = ending
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)

    def run(self) -> None:
        http = triton_http.InferenceServerClient(self._server.address)
        grpc = triton_grpc.InferenceServerClient(f"{HOST}:{self._server.grpc_port}")
        infer: dict[str, Callable[[str, Array], Answer]] = {
            "HTTP, binary": lambda model, given: _infer(http, triton_http, model, given),
            "HTTP, JSON": self._json,
            "gRPC": lambda model, given: _infer(grpc, triton_grpc, model, given),
        }
        stream: dict[str, Callable[[Array], list[Array]]] = {"gRPC stream": self._stream, "events": self._events}
        try:
            while not self._ending.is_set():
                model = self._random.choice((PLAIN, CACHED, PYTHON, CHAIN, WORDS))
                way = self._random.choice(list(stream if model == WORDS else infer))
                self._ask(model, way, infer.get(way), stream.get(way))
                self.asked[f"{model} by {way}"] += 1
        except Exception as error:
            self.failure = f"{model} by {way}: {error!r}"
            self._ending.set()
        finally:
            http.close()
            grpc.close()

    def _ask(
        self,
        model: str,
        way: str,
        infer: Callable[[str, Array], Answer] | None,
        stream: Callable[[Array], list[Array]] | None,
    ) -> None:
        least = dict(self._weights.least)
        if stream is not None:
            given = self._numbers.integers(1, 6, 1, np.int32)
            seen = {model: words_weight(given, stream(given))}
        else:
            assert infer is not None
            given = self._given(model)
            answer = infer(model, given)
            seen = chain_weights(given, answer) if model == CHAIN else {model: weight_of(given, answer)}
        for name, weight in seen.items():
            if not least[name] <= weight <= self._weights.most[name]:
                raise WrongAnswer(f"weight {weight} of {name}, where {least[name]} was loaded before")

    def _given(self, model: str) -> Array:
        """Few different ones for the cache."""
        rows = self._random.choice((1, 1, 1, 3))
        if model == CACHED:
            return np.full((rows, WIDTH), self._random.randrange(1, 5), np.int32)
        return self._numbers.integers(1, 100, (rows, WIDTH), np.int32)

    def _json(self, model: str, given: Array) -> Answer:
        entry = {"name": "IN", "datatype": "INT32", "shape": given.shape, "data": given.tolist()}
        answer = self._server.json("POST", f"/v2/models/{model}/infer", {"inputs": [entry]})
        return {each["name"]: np.array(each["data"], np.int32).reshape(each["shape"]) for each in answer["outputs"]}

    def _events(self, given: Array) -> list[Array]:
        body = json.dumps({"IN": int(given[0])}).encode()
        connection = http.client.HTTPConnection(HOST, self._server.http_port, timeout=LIMIT_S)
        try:
            connection.request("POST", f"/v2/models/{WORDS}/generate_stream", body)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise WrongAnswer(text)
        events = [json.loads(line.removeprefix("data:")) for line in text.split("\n") if line]
        if any("OUT" not in event for event in events):
            raise WrongAnswer(text)
        return [np.array([event["OUT"]], np.int32) for event in events]

    def _stream(self, given: Array) -> list[Array]:
        results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        answers: list[Array] = []
        with triton_grpc.InferenceServerClient(f"{HOST}:{self._server.grpc_port}") as client:
            client.start_stream(lambda result, error: results.put((result, error)))
            client.async_stream_infer(WORDS, _inputs(triton_grpc, given), enable_empty_final_response=True)
            while True:
                result, error = results.get(timeout=LIMIT_S)
                if error is not None:
                    raise error
                response = result.get_response()
                if response.outputs:
                    answers.append(result.as_numpy("OUT"))
                if response.parameters["triton_final_response"].bool_param:
                    return answers


def _infer(client: Any, triton: Any, model: str, given: Array) -> Answer:
    result = client.infer(model, _inputs(triton, given))
    names = ("FIRST", "SUM", "PRODUCT") if model == CHAIN else ("SUM", "PRODUCT")
    return {name: result.as_numpy(name) for name in names}


def _inputs(triton: Any, given: Array) -> list[Any]:
    tensor = triton.InferInput("IN", list(given.shape), "INT32")
    tensor.set_data_from_numpy(given)
    return [tensor]
