"""Mixed load while every model is reloaded again and again: no request fails, and no answer is wrong.

Clients ask plain, cached, Python, decoupled, iterative and ensemble models and sequences over HTTP and gRPC, compute
each answer themselves, and know which weights were served when. SOAK_SECONDS in the environment is the time for each
shape of the server.

The models show their weight in every answer. `plain`, `cached` and `python` answer IN with SUM = IN + weight and
PRODUCT = IN * weight. `chain` runs `plain` and then `python` on its product. `tally` adds up the IN of a sequence in
its state, and answers with that TOTAL and with TOTAL * weight. `words` and `tokens` answer IN = [n] with n responses:
IN * weight, IN * weight + 1, ..., `tokens` with one in each of n iterations. A reload takes a larger weight.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import helper
from tritonclient.utils import InferenceServerException

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.lifecycle.changing_models import load
from tests.contract.python.python_models import write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import build, constant, tensor, write_version
from tests.waiting import until
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]
SECONDS = float(os.environ.get("SOAK_SECONDS", "2"))
CLIENTS = 6
LIMIT_S = 60.0
SEQUENCE = 5
WIDTH = 8
PLAIN, CACHED, PYTHON, CHAIN, TALLY = "plain", "cached", "python", "chain", "tally"
WORDS, TOKENS = "words", "tokens"
# The processes of the latter take a second to start, on a busy machine more.
QUICK = (PLAIN, CACHED, CHAIN, TALLY)
SLOW = (PYTHON, WORDS, TOKENS)
WEIGHTED = (PLAIN, CACHED, PYTHON, TALLY, WORDS, TOKENS)
WAYS = {
    **dict.fromkeys((PLAIN, CACHED, PYTHON, CHAIN), ("HTTP, binary", "HTTP, JSON", "gRPC")),
    TALLY: ("HTTP, binary", "gRPC"),
    WORDS: ("events", "gRPC stream"),
    TOKENS: ("events", "gRPC stream", "gRPC stream, cancelled"),
}
# Executions of `plain`, `python` and `tokens` never run at the same time.
_TURNS = 'rate_limiter { resources { name: "turn" count: 1 } }'
_GROUP = f"instance_group {{ kind: KIND_CPU count: 2 {_TURNS} }}"
_BATCHED = "max_batch_size: 8 dynamic_batching {}"
_TENSORS = f"""
input {{ name: "IN" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "SUM" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "PRODUCT" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
"""
_WEIGHT = """
def initialize(self, args):
    with open(os.path.join(args["model_repository"], args["model_version"], "weight")) as file:
        self.weight = np.int32(file.read())

"""
_PYTHON = """
def execute(self, requests):
    responses = []
    for request in requests:
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        tensors = [pb_utils.Tensor("SUM", given + self.weight), pb_utils.Tensor("PRODUCT", given * self.weight)]
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""
_WORDS = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        for number in range(int(given[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given * self.weight + np.int32(number))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_TOKENS = """
    self.sent = {}

def execute(self, requests):
    for request in requests:
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        key = request.correlation_id()
        begins = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        number = self.sent[key] = 0 if begins else self.sent[key] + 1
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given * self.weight + np.int32(number))])
        if number + 1 < int(given.flat[0]):
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            request.get_response_sender().send(response)
        else:
            del self.sent[key]
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_MANY = """
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_ITERATIVE = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }"
_TALLY = f"""
max_batch_size: 8
input {{ name: "IN" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "TOTAL" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "PRODUCT" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
instance_group {{ kind: KIND_CPU count: 2 }}
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  oldest {{ max_candidate_sequences: 3 }}
  state {{
    input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ {WIDTH} ]
    initial_state {{ name: "nothing" data_type: TYPE_INT32 dims: [ {WIDTH} ] zero_data: true }}
  }}
}}
"""


def write_models(repository: Path) -> None:
    """All of them, with the weight 1."""
    write_version(_graph(1), repository, PLAIN, _BATCHED + _TENSORS + _GROUP)
    write_version(_graph(1), repository, CACHED, _BATCHED + _TENSORS + "response_cache { enable: true }")
    write_model(repository, PYTHON, _WEIGHT + _PYTHON, "dynamic_batching {}" + _TENSORS + _GROUP)
    write_model(repository, WORDS, _WEIGHT + _WORDS, _MANY + "instance_group { kind: KIND_CPU }", max_batch_size=0)
    one = f"instance_group {{ kind: KIND_CPU {_TURNS} }}"
    write_model(repository, TOKENS, _WEIGHT + _TOKENS, _MANY + _ITERATIVE + one, max_batch_size=4)
    write_version(_tally(1), repository, TALLY, _TALLY)
    for name in SLOW:
        write_weight(repository, name, 1)
    outputs = {"SUM": "SUM", "PRODUCT": "PRODUCT"}
    write_ensemble(
        repository,
        CHAIN,
        [("IN", "TYPE_INT32", [WIDTH])],
        [(name, "TYPE_INT32", [WIDTH]) for name in ("FIRST", *outputs)],
        [step(PLAIN, {"IN": "IN"}, {"SUM": "FIRST", "PRODUCT": "x"}), step(PYTHON, {"IN": "x"}, outputs)],
    )


def write_weight(repository: Path, name: str, weight: int) -> None:
    """Give the model another weight, which counts from its next load on."""
    aside = repository / f".{name}"
    if name in SLOW:
        aside.write_text(str(weight))
        aside.replace(repository / name / "1" / "weight")
    else:
        graph = _tally(weight) if name == TALLY else _graph(weight)
        aside.write_bytes(graph.SerializeToString())
        aside.replace(repository / name / "1" / "model.onnx")


def _graph(weight: int) -> onnx.ModelProto:
    return build(
        [helper.make_node("Add", ["IN", "WEIGHT"], ["SUM"]), helper.make_node("Mul", ["IN", "WEIGHT"], ["PRODUCT"])],
        [tensor("IN", "INT32", ["batch", WIDTH])],
        [tensor(name, "INT32", ["batch", WIDTH]) for name in ("SUM", "PRODUCT")],
        [constant("WEIGHT", [weight], "INT32")],
    )


def _tally(weight: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["IN", "BEFORE"], ["TOTAL"]),
        helper.make_node("Identity", ["TOTAL"], ["AFTER"]),
        helper.make_node("Mul", ["TOTAL", "WEIGHT"], ["PRODUCT"]),
    ]
    return build(
        nodes,
        [tensor(name, "INT32", ["batch", WIDTH]) for name in ("IN", "BEFORE")],
        [tensor(name, "INT32", ["batch", WIDTH]) for name in ("TOTAL", "PRODUCT", "AFTER")],
        [constant("WEIGHT", [weight], "INT32")],
    )


_START_MISSING = "must specify the START flag"
# Outputs by name.
Answer = Mapping[str, Array]


class WrongAnswer(Exception):
    """An answer that no weight explains, or one with a weight that was not served at that time."""


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

    def __init__(self, soak: Soak, seed: int) -> None:
        super().__init__(name=f"soak-{seed}")
        self.asked: Counter[str] = Counter()
        self.failure = ""
        self._soak = soak
        self._server = soak.server
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._seed = seed

    def run(self) -> None:
        self._http = triton_http.InferenceServerClient(self._server.address)
        self._grpc = triton_grpc.InferenceServerClient(f"{HOST}:{self._server.grpc_port}")
        ask: dict[str, Callable[[str, str], Mapping[str, int]]] = {
            TALLY: self._ask_sequence,
            WORDS: self._ask_many,
            TOKENS: self._ask_many,
        }
        try:
            while not self._soak.ending.is_set():
                model = self._random.choice(list(WAYS))
                way = self._random.choice(WAYS[model])
                least = dict(self._soak.least)
                for name, weight in ask.get(model, self._ask)(model, way).items():
                    if not least[name] <= weight <= self._soak.most[name]:
                        raise WrongAnswer(f"weight {weight} of {name}, where {least[name]} was loaded before")
                self.asked[f"{model} by {way}"] += 1
        except Exception as error:
            self.failure = f"{model} by {way}: {type(error).__name__}: {error}"
            self._soak.ending.set()
        finally:
            self._http.close()
            self._grpc.close()

    # --- one answer

    def _ask(self, model: str, way: str) -> Mapping[str, int]:
        given = self._given(model)
        answer = self._infer(model, way, given)
        return chain_weights(given, answer) if model == CHAIN else {model: weight_of(given, answer)}

    def _given(self, model: str) -> Array:
        """Few different ones for the cache."""
        rows = self._random.choice((1, 1, 1, 3))
        if model == CACHED:
            return np.full((rows, WIDTH), self._random.randrange(1, 5), np.int32)
        return self._numbers.integers(1, 100, (rows, WIDTH), np.int32)

    def _infer(self, model: str, way: str, given: Array, **options: Any) -> Answer:
        client, triton = (self._grpc, triton_grpc) if way == "gRPC" else (self._http, triton_http)
        names = {CHAIN: ("FIRST", "SUM", "PRODUCT"), TALLY: ("TOTAL", "PRODUCT")}.get(model, ("SUM", "PRODUCT"))
        if way == "HTTP, JSON":
            options["outputs"] = [triton.InferRequestedOutput(name, binary_data=False) for name in names]
        binary = {"binary_data": False} if way == "HTTP, JSON" else {}
        result = client.infer(model, _inputs(triton, given, **binary), **options)
        return {name: result.as_numpy(name) for name in names}

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
                was_reloaded = any(weight < self._soak.most[model] for weight in weights)
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
        status, _, answer = self._server.request("POST", f"/v2/models/{model}/generate_stream", body)
        events = [json.loads(line.removeprefix(b"data:")) for line in answer.split(b"\n") if line]
        if status != 200 or any("OUT" not in event for event in events):
            raise WrongAnswer(answer.decode())
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


def _inputs(triton: Any, given: Array, **options: bool) -> list[Any]:
    return [triton.InferInput("IN", list(given.shape), "INT32").set_data_from_numpy(given, **options)]


@pytest.fixture
def server(http_workers: str, tmp_path: Path) -> Iterator[ServerProcess]:
    repository = tmp_path / "models"
    write_models(repository)
    options = ["--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0"]
    options += ["--rate-limit=execution_count", "--cache-config=local,size=1048576"]
    with ServerProcess(repository, tmp_path / "log", *options) as running:
        yield running


class Reloader(threading.Thread):
    """Reloads models in turn, with a larger weight each, until `ending` is set. `reloads` counts them."""

    def __init__(self, soak: Soak, names: Sequence[str]) -> None:
        super().__init__(name=f"soak-reloads-{names[0]}")
        self.reloads: Counter[str] = Counter()
        self.failure = ""
        self._soak = soak
        self._names = names

    def run(self) -> None:
        try:
            for name in itertools.cycle(self._names):
                self._soak.go_on()
                if self._soak.ending.is_set():
                    return
                self._reload(name)
                self.reloads[name] += 1
        except Exception as error:
            self.failure = f"reload of {name}: {error!r}"
            self._soak.ending.set()

    @property
    def was_everywhere(self) -> bool:
        return len(self.reloads) == len(self._names)

    def _reload(self, name: str) -> None:
        soak = self._soak
        if name in WEIGHTED:
            soak.most[name] += 1
            write_weight(soak.server.repository, name, soak.most[name])
        assert load(soak.server, name) == (200, "")
        if name in WEIGHTED:
            soak.least[name] = soak.most[name]


class Soak:
    """Models may answer with the weights from `least`, which was loaded, to `most`, which is being loaded or was."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.least = dict.fromkeys(WEIGHTED, 1)
        self.most = dict.fromkeys(WEIGHTED, 1)
        self.ending = threading.Event()
        self.clients = [SoakClient(self, seed) for seed in range(CLIENTS)]
        self.reloaders = [Reloader(self, QUICK), Reloader(self, SLOW)]

    @property
    def answers(self) -> int:
        return sum(client.asked.total() for client in self.clients)

    def go_on(self) -> None:
        """Wait for some more answers, or for the end."""
        before = self.answers
        until(lambda: self.ending.is_set() or self.answers >= before + 10 * CLIENTS)

    def run(self) -> None:
        """For at least SECONDS, and until every model was reloaded."""
        end = time.monotonic() + SECONDS
        threads = [*self.clients, *self.reloaders]
        for thread in threads:
            thread.start()
        while not self.ending.is_set():
            self.go_on()
            if time.monotonic() >= end and all(each.was_everywhere for each in self.reloaders):
                break
        self.ending.set()
        for thread in threads:
            thread.join(90)


def test_no_answer_is_wrong_while_every_model_is_reloaded(server: ServerProcess) -> None:
    soak = Soak(server)
    soak.run()
    failures = [client.failure for client in soak.clients] + [reloader.failure for reloader in soak.reloaders]
    assert [failure for failure in failures if failure] == []
    asked = sum((client.asked for client in soak.clients), Counter[str]())
    reloads = sum((each.reloads for each in soak.reloaders), Counter[str]())
    print(f"{asked.total()} answers, {reloads.total()} reloads: {dict(sorted(asked.items()))}, {dict(reloads)}")
    wanted = {f"{model} by {way}" for model, ways in WAYS.items() for way in ways}
    assert wanted <= asked.keys(), "not every model was asked in every way"
    assert "Traceback" not in server.log_text()
    index = server.json("POST", "/v2/repository/index")
    assert {entry["name"]: entry.get("state") for entry in index} == dict.fromkeys((*QUICK, *SLOW), "READY")
