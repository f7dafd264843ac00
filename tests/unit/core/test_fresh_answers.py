"""Any request, after any others, is read and answered as on a fresh server: nothing that the server remembers of one
request shows in another.

A history is a few requests that differ little, in JSON, with binary tensors and over gRPC. One application and one
decoder take all of them, in order; then each of them again alone, where nothing is remembered.
`FUZZ_EXAMPLES=1000000` asks that many.
"""

from __future__ import annotations

import functools
import io
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest

from tests.fuzzing import EXAMPLES, examples
from tests.unit.core.grpc.test_request_fuzz import described
from tests.unit.fake_engine import FakeEngine
from tests.unit.packed_tensors import spec
from trident.core.backends.tensors import Splitter
from trident.core.config.request_check import RequestValidator
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest, ModelNotFound, ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.grpc.infer import encode_response
from trident.core.grpc.request import MessageDecoder
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.reply import BODY_KEY
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.memo import Memo

HISTORY = 24


def optional(model: ModelSpec, name: str) -> ModelSpec:
    inputs = {key: replace(each, optional=True) for key, each in model.inputs.items()}
    return replace(model, name=name, inputs=inputs)


MODELS = {
    "m": optional(spec(8, A=("INT32", (-1,)), B=("FP32", (-1,)), C=("BOOL", (-1,))), "m"),
    "n": optional(spec(0, A=("INT32", (-1,)), B=("FP32", (-1, -1))), "n"),
    "s": optional(spec(0, A=("BYTES", (-1,)), B=("INT64", (-1,))), "s"),
}


class EchoEngine(FakeEngine):
    """Its models return their inputs, and 0 for missing ones; `seen` describes the requests that reach them."""

    def __init__(self) -> None:
        super().__init__(self._echo)
        self.seen: list[str] = []
        self._parts = {name: (RequestValidator(each), Splitter(each, {})) for name, each in MODELS.items()}

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        if name not in MODELS or version not in (-1, 1):
            raise ModelNotFound(f"'{name}' is not found")
        return MODELS[name]

    def _echo(self, request: InferenceRequest) -> InferenceResponse:
        if request.needs_regions:
            self.seen.append(repr([getattr(each, "reference", None) for each in request.inputs]))
            return InferenceResponse(request.model_name, 1, [], id=request.id)
        self.seen.append(repr(described(request)))
        validator, splitter = self._parts[request.model_name]
        try:
            count, _ = validator.check(request)
        except InvalidRequest as error:
            return InferenceResponse(request.model_name, 1, [], id=request.id, error=error)
        given = {each.name: each.array for each in request.inputs}
        default = (count, 1) if MODELS[request.model_name].max_batch_size else (1,)
        results = [
            given.get(name, np.zeros(default, each.datatype.dtype) if each.datatype.size else np.full(default, b""))
            for name, each in MODELS[request.model_name].outputs.items()
        ]
        (outputs,) = splitter.split([request], [count], results, count)
        return InferenceResponse(request.model_name, 1, outputs, id=request.id)


# --- requests that differ little

Choice = random.Random
IDS = ['"a"', '"b"', '""', '"\\u0061"', '"a b"', '"ä"', "1", "null", '"id"', '"\\"id\\":\\"x\\""']
VALUES = ["1", "true", "1.0", "0.0", "-0.0", "0", "false", '"a"', '""', '"b"', "NaN", "2", "null"]
PARAMETERS = [
    "id",
    "mine",
    "data",
    "priority",
    "timeout",
    "sequence_id",
    "sequence_start",
    "binary_data_output",
    "i\\u0064",
]
NUMBERS = [
    "0",
    "1",
    "-0.0",
    "0.0",
    "1.5",
    "-1",
    "true",
    "false",
    "1e2",
    "NaN",
    "300",
    "1e400",
    "3000000000",
    '"x"',
    "[1]",
]
DATATYPES = ["INT32", "INT32", "INT32", "FP32", "FP32", "BOOL", "BYTES", "INT64", "FP64", "X"]


def an_object(rng: Choice, members: list[tuple[str, str]]) -> str:
    if rng.random() < 0.3:
        rng.shuffle(members)
    space = rng.choice(["", "", " "])
    return "{" + f",{space}".join([f'"{key}":{space}{value}' for key, value in members]) + "}"


def some_parameters(rng: Choice) -> str:
    return an_object(rng, [(rng.choice(PARAMETERS), rng.choice(VALUES)) for _ in range(rng.randint(0, 2))])


def an_input(rng: Choice, tails: list[bytes] | None) -> str:
    count = rng.choice([0, 1, 1, 2, 2, 3])
    datatype = rng.choice(DATATYPES)
    shape = rng.choice([[1, count], [1, count], [count], [count, 1], [1, 1, count], [True, count], [1.0]])
    members = [
        ("name", rng.choice(['"A"', '"A"', '"B"', '"C"'])),
        ("shape", json.dumps(shape)),
        ("datatype", f'"{datatype}"'),
    ]
    kind = rng.random()
    if tails is not None and kind < 0.8:
        size = count * (1 if datatype == "BOOL" else 4) + (rng.random() < 0.05)
        tails.append(rng.choice([rng.randbytes(size), bytes(size)]))
        members.append(("parameters", f'{{"binary_data_size":{size}}}'))
    elif kind < 0.95:
        values = [rng.choice(NUMBERS if rng.random() < 0.2 else NUMBERS[:2]) for _ in range(count)]
        members.append(("data", f"[{','.join(values)}]"))
    else:
        place = '{"shared_memory_region":"r","shared_memory_byte_size":%d}'
        members.append(("parameters", place % rng.choice([4, 8])))
    if rng.random() < 0.1:
        members.append(("id", rng.choice(IDS)))
    return an_object(rng, members)


def an_output(rng: Choice) -> str:
    form = rng.choice(
        ["{}", "{}", '{"binary_data":true}', '{"binary_data":false}', '{"classification":1}', '{"binary_data":1}']
    )
    return an_object(rng, [("name", rng.choice(['"A"', '"A"', '"B"', '"D"'])), ("parameters", form)])


Sent = tuple[str, str, bytes, int | None]
"""The protocol, the model, the body, and the length of its JSON if tensors follow it."""


def http_request(rng: Choice) -> Sent:
    tails: list[bytes] | None = rng.choice([None, []])
    inputs = [an_input(rng, tails) for _ in range(rng.choice([1, 1, 2, 3]))]
    members = [("inputs", f"[{','.join(inputs)}]")]
    for member, make, odds in (
        ("id", lambda: rng.choice(IDS), 0.6),
        ("parameters", lambda: some_parameters(rng), 0.4),
        ("outputs", lambda: f"[{','.join([an_output(rng) for _ in range(rng.randint(0, 2))])}]", 0.3),
        ("id", lambda: rng.choice(IDS), 0.1),
        ("i\\u0064", lambda: rng.choice(IDS), 0.05),
    ):
        if rng.random() < odds:
            members.insert(rng.randint(0, len(members)), (member, make()))
    text = an_object(rng, members).encode()
    tail = b"".join(tails or ())
    return "http", rng.choice(["m", "m", "n", "s"]), text + tail, None if tails is None else len(text)


def grpc_request(rng: Choice) -> Sent:
    message = ModelInferRequest(model_name=rng.choice(["m", "m", "n", "s"]), id=rng.choice(["", "", "a", "b", "ä"]))
    for _ in range(rng.choice([1, 1, 2, 3])):
        datatype = rng.choice(DATATYPES)
        count = rng.choice([0, 1, 2, 3])
        shape = rng.choice([[1, count], [1, count], [count], [-1, -1], [count, 1]])
        tensor = message.inputs.add(name=rng.choice(["A", "A", "B", "C"]), datatype=datatype, shape=shape)
        if rng.random() < 0.1:
            tensor.contents.int_contents.extend(range(count))
        else:
            message.raw_input_contents.append(rng.randbytes(count * (1 if datatype == "BOOL" else 4)))
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        field, value = rng.choice(
            [
                ("int64_param", 1),
                ("bool_param", True),
                ("double_param", 1.0),
                ("double_param", -0.0),
                ("string_param", ""),
            ]
        )
        setattr(message.parameters[rng.choice(["mine", "id", "priority", "sequence_id"])], field, value)
    for _ in range(rng.choice([0, 0, 0, 1])):
        message.outputs.add(name=rng.choice(["A", "B"]))
    return "grpc", "", message.SerializeToString(), None


def changed(rng: Choice, sent: Sent) -> Sent:
    """Almost the same request: a byte, or a part of it that another one may have in its place."""
    protocol, model, body, length = sent
    if rng.random() < 0.5 and body:
        at = rng.randrange(len(body))
        return (
            protocol,
            model,
            body[:at] + bytes([rng.choice([*b'01 "]},\\\xffab', rng.randrange(256)])]) + body[at + 1 :],
            length,
        )
    for old, new in rng.sample([(each, other) for each in IDS[:6] for other in IDS[:6]], 12):
        before, after = f'"id":{old}'.encode(), f'"id":{new}'.encode()
        if before in body and before != after:
            made = body.replace(before, after, 1)
            return protocol, model, made, None if length is None else length + len(made) - len(body)
    return protocol, rng.choice(["m", "n", "s"]), body, length


def a_history(rng: Choice) -> list[Sent]:
    pool = [rng.choice([http_request, http_request, grpc_request])(rng) for _ in range(rng.randint(1, 4))]
    history: list[Sent] = []
    for _ in range(HISTORY):
        if rng.random() < 0.5:
            pool.append(changed(rng, rng.choice(pool)))
        history.append(rng.choice(pool))
    return history


# --- answers


class Server:
    def __init__(self) -> None:
        self._engine = EchoEngine()
        self._application = V2Application(self._engine, HttpOptions(), ThreadBridge())
        self._decoder = MessageDecoder(self._engine.model)

    def answer(self, sent: Sent) -> tuple[list[str], object]:
        """The request as the model received it, and the whole answer."""
        self._engine.seen = []
        answer = self._http(sent) if sent[0] == "http" else self._grpc(sent[2])
        return self._engine.seen, answer

    def _http(self, sent: Sent) -> object:
        _, model, body, length = sent
        path = f"/v2/models/{model}/infer"
        environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "RAW_URI": path, "PATH_INFO": path, "QUERY_STRING": ""}
        environ |= {"SERVER_PROTOCOL": "HTTP/1.1", "wsgi.input": io.BytesIO(body), BODY_KEY: body}
        if length is not None:
            environ["HTTP_INFERENCE_HEADER_CONTENT_LENGTH"] = str(length)
        started: list[object] = []
        content = b"".join(map(bytes, self._application(environ, lambda *head: started.append(head))))
        return started, content

    def _grpc(self, body: bytes) -> object:
        try:
            decoded = self._decoder.decode(body)
            response = self._engine.respond(decoded.request)
            if response is None or response.error is not None:
                raise response.error if response is not None and response.error is not None else AssertionError
            parts, size = encode_response(response, decoded.plan, decoded.model.spec)
        except ServerError as error:
            return type(error), error.message
        return b"".join(map(bytes, parts)), size


def forgetting() -> Callable[[], None]:
    """A function that empties everything that the modules of the server remember."""
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("trident.core")]
    values = [value for names in modules for value in names.values()]
    parts = [getattr(each, "_known", None) for each in values if type(each).__module__.startswith("trident.")]
    memos = list({id(each): each for each in (*values, *parts) if isinstance(each, Memo)}.values())
    caches = [each for each in values if isinstance(each, functools._lru_cache_wrapper)]
    assert len(memos) >= 4

    def forget() -> None:
        for memo in memos:
            memo.clear()
        for cache in caches:
            if cache.__module__.startswith("trident.core.http"):
                cache.cache_clear()

    return forget


def test_a_request_after_others_is_answered_as_on_a_fresh_server() -> None:
    seed = random.randrange(2**32) if EXAMPLES else 1
    rng = random.Random(seed)
    forget = forgetting()
    answered = 0
    for number in range(-(-examples(4800) // HISTORY)):
        history = a_history(rng)
        forget()
        server = Server()
        after_others = [server.answer(sent) for sent in history]
        alone: dict[Sent, object] = {}
        for index, (sent, answer) in enumerate(zip(history, after_others, strict=True)):
            if sent not in alone:
                forget()
                alone[sent] = Server().answer(sent)
            assert answer == alone[sent], f"seed {seed}, history {number}, request {index}: {sent}"
            answered += bool(answer[0])
    assert answered > examples(4800) / 4


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_parameter_named_id_belongs_to_its_request(is_binary: bool) -> None:
    source = '"parameters":{"binary_data_size":4}' if is_binary else '"data":[1]'
    text = '{"parameters":{"id":"%s"},"inputs":[{"name":"A","shape":[1,1],"datatype":"INT32",%s}]}'
    server = Server()
    for value in ("", "b", "", "c"):
        body = (text % (value, source)).encode()
        seen, _ = server.answer(("http", "m", body + bytes(4 * is_binary), len(body) if is_binary else None))
        assert f"'parameters': {{'id': '{value}'}}" in seen[0]
        assert "'id': ''," in seen[0]
