"""Clients that ask the models of a soak in every way, and compute each answer themselves."""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.soak.soak_models import CACHED, CHAIN, PLAIN, PYTHON, TALLY, TOKENS, WEIGHTED, WIDTH, WORDS
from trident.core.inference.tensors import Array

LIMIT_S = 60.0
SEQUENCE = 5
WAYS = {
    **dict.fromkeys((PLAIN, CACHED, PYTHON, CHAIN), ("HTTP, binary", "HTTP, JSON", "gRPC")),
    TALLY: ("HTTP, binary", "gRPC"),
    WORDS: ("events", "gRPC stream"),
    TOKENS: ("events", "gRPC stream", "gRPC stream, cancelled"),
}
_START_MISSING = "must specify the START flag"

# Outputs by name.
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


def tally_weight(total: Array, answer: Answer) -> int:
    """`total` is the sum of what the sequence has sent."""
    _compare(answer["TOTAL"], total)
    weight = int(answer["PRODUCT"].flat[0]) // int(total.flat[0])
    _compare(answer["PRODUCT"], total * np.int32(weight))
    return weight


def words_weight(given: Array, answers: list[Array], *, is_whole: bool = True) -> int:
    if is_whole and len(answers) != given[0]:
        raise WrongAnswer(f"{len(answers)} responses to {given}")
    weight = int(answers[0][0]) // int(given[0])
    for number, answer in enumerate(answers):
        _compare(answer, given * np.int32(weight) + np.int32(number))
    return weight


def _compare(found: Array, wanted: Array) -> None:
    if found.shape != wanted.shape or not np.array_equal(found, wanted):
        raise WrongAnswer(f"{found.tolist()} instead of {wanted.tolist()}")


class SoakClient(threading.Thread):
    """Asks until `ending` is set, or until an answer is wrong, which `failure` then says.

    `asked` counts by model and way, and sequences that a reload has ended.
    """

    def __init__(self, server: ServerProcess, weights: Weights, ending: threading.Event, seed: int) -> None:
        super().__init__(name=f"soak-{seed}")
        self.asked: Counter[str] = Counter()
        self.failure = ""
        self._server = server
        self._weights = weights
        self._ending = ending
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._seed = seed

    def run(self) -> None:
        self._http = triton_http.InferenceServerClient(self._server.address)
        self._grpc = triton_grpc.InferenceServerClient(f"{HOST}:{self._server.grpc_port}")
        ask: dict[str, Callable[[str, str], Mapping[str, int]]] = {
            CHAIN: self._ask_chain,
            TALLY: self._ask_sequence,
            WORDS: self._ask_many,
            TOKENS: self._ask_many,
        }
        try:
            while not self._ending.is_set():
                model = self._random.choice(list(WAYS))
                way = self._random.choice(WAYS[model])
                least = dict(self._weights.least)
                for name, weight in ask.get(model, self._ask)(model, way).items():
                    if not least[name] <= weight <= self._weights.most[name]:
                        raise WrongAnswer(f"weight {weight} of {name}, where {least[name]} was loaded before")
                self.asked[f"{model} by {way}"] += 1
        except Exception as error:
            self.failure = f"{model} by {way}: {type(error).__name__}: {error}"
            self._ending.set()
        finally:
            self._http.close()
            self._grpc.close()

    # --- one answer

    def _ask(self, model: str, way: str) -> Mapping[str, int]:
        given = self._given(model)
        return {model: weight_of(given, self._infer(model, way, given))}

    def _ask_chain(self, model: str, way: str) -> Mapping[str, int]:
        given = self._given(model)
        return chain_weights(given, self._infer(model, way, given))

    def _given(self, model: str) -> Array:
        """Few different ones for the cache."""
        rows = self._random.choice((1, 1, 1, 3))
        if model == CACHED:
            return np.full((rows, WIDTH), self._random.randrange(1, 5), np.int32)
        return self._numbers.integers(1, 100, (rows, WIDTH), np.int32)

    def _infer(self, model: str, way: str, given: Array, **options: Any) -> Answer:
        if way == "HTTP, JSON":
            return self._json(model, given)
        client, triton = (self._grpc, triton_grpc) if way == "gRPC" else (self._http, triton_http)
        result = client.infer(model, _inputs(triton, given), **options)
        names = {CHAIN: ("FIRST", "SUM", "PRODUCT"), TALLY: ("TOTAL", "PRODUCT")}.get(model, ("SUM", "PRODUCT"))
        return {name: result.as_numpy(name) for name in names}

    def _json(self, model: str, given: Array) -> Answer:
        entry = {"name": "IN", "datatype": "INT32", "shape": given.shape, "data": given.tolist()}
        answer = self._server.json("POST", f"/v2/models/{model}/infer", {"inputs": [entry]})
        return {each["name"]: np.array(each["data"], np.int32).reshape(each["shape"]) for each in answer["outputs"]}

    # --- a sequence

    def _ask_sequence(self, model: str, way: str) -> Mapping[str, int]:
        """One weight answers the whole. A reload may end a sequence: then its next request is refused."""
        total = np.zeros((1, WIDTH), np.int32)
        weights: set[int] = set()
        for number in range(SEQUENCE):
            given = self._numbers.integers(1, 100, (1, WIDTH), np.int32)
            total = total + given
            marks = {"sequence_start": number == 0, "sequence_end": number == SEQUENCE - 1}
            try:
                answer = self._infer(model, way, given, sequence_id=self._seed + 1, **marks)
            except InferenceServerException as error:
                was_reloaded = any(weight < self._weights.most[model] for weight in weights)
                if _START_MISSING in str(error) and was_reloaded:
                    self.asked[f"{model} ended by a reload"] += 1
                    break
                raise
            weights.add(tally_weight(total, answer))
        if len(weights) != 1:
            raise WrongAnswer(f"a sequence was answered with the weights {weights}")
        return {model: weights.pop()}

    # --- many answers

    def _ask_many(self, model: str, way: str) -> Mapping[str, int]:
        is_cut = way == "gRPC stream, cancelled"
        count = 10_000 if is_cut else self._random.randrange(1, 6)
        given = np.array([count], np.int32)
        if way == "events":
            return {model: words_weight(given, self._events(model, given))}
        answers: list[Array] = []
        for answer in self._stream(model, given):
            answers.append(answer)
            if is_cut and len(answers) == 3:
                break
        return {model: words_weight(given, answers, is_whole=not is_cut)}

    def _events(self, model: str, given: Array) -> list[Array]:
        body = json.dumps({"IN": int(given[0])}).encode()
        connection = http.client.HTTPConnection(HOST, self._server.http_port, timeout=LIMIT_S)
        try:
            connection.request("POST", f"/v2/models/{model}/generate_stream", body)
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

    def _stream(self, model: str, given: Array) -> Iterator[Array]:
        """The answers as they come. Whoever stops before the end cancels the request."""
        results: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        with triton_grpc.InferenceServerClient(f"{HOST}:{self._server.grpc_port}") as client:
            client.start_stream(lambda result, error: results.put((result, error)))
            shaped = given if model == WORDS else given.reshape(1, 1)
            client.async_stream_infer(model, _inputs(triton_grpc, shaped), enable_empty_final_response=True)
            try:
                while True:
                    result, error = results.get(timeout=LIMIT_S)
                    if error is not None:
                        raise error
                    response = result.get_response()
                    if response.outputs:
                        yield result.as_numpy("OUT").reshape(-1)
                    if response.parameters["triton_final_response"].bool_param:
                        return
            finally:
                client.stop_stream(cancel_requests=True)


def _inputs(triton: Any, given: Array) -> list[Any]:
    tensor = triton.InferInput("IN", list(given.shape), "INT32")
    tensor.set_data_from_numpy(given)
    return [tensor]
