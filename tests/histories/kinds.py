"""Every kind of model, and its correct answers.

The values of a request follow from its tag, a number that no other request of a run has, so an answer to another
request is seen. Each load of a model has a larger weight, which its answers contain, so an answer of a version that
does not serve is seen, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import helper

import trident
from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import write_model
from tests.hub_folders import WORDS, mean_of, write_folder
from tests.unit.onnx_models import build, constant, tensor, write_version
from trident.core.inference.tensors import BY_NAME, Array

WIDTH = 8
# A tensor's datatype and values; BF16 as bit patterns.
Tensors = Mapping[str, tuple[str, Array]]
# Outputs by name.
Answer = Mapping[str, Array]
# None: an empty answer does not show it.
Weights = tuple[int | None, ...]

HTTP = ("HTTP JSON", "HTTP binary", "HTTP mixed")
GRPC = ("gRPC", "gRPC stream")
MEMORY = ("shared memory",)
SOCKET = ("WebSocket",)
LIBRARY = ("library",)
ONE_ANSWER = (*HTTP, *GRPC, *MEMORY, *SOCKET, *LIBRARY)
MANY_ANSWERS = ("gRPC stream", *SOCKET, "events", *LIBRARY)
PLATFORMS = ("SageMaker", "Vertex")


class WrongAnswer(Exception):
    """An answer that no weight explains, or with a weight that did not serve at that time."""


@dataclass(frozen=True)
class Question:
    """One request. All of it follows from the run's seed and `tag`."""

    kind: Kind
    tag: int
    inputs: Tensors
    id: str | bytes = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    # Of a sequence: START, END, and the numbers that it has sent so far, with these.
    marks: tuple[bool, bool] | None = None
    sequence: int | str = 0
    total: Array | None = None
    # The server may refuse it, since its id or parameters are unusual.
    is_doubtful: bool = False

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values()))[1])


def numbers(tag: int, count: int) -> Array:
    """64-bit numbers that differ between tags."""
    seed = (tag + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9) ^ np.uint64(seed)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(27)))


def values(tag: int, datatype: str, shape: Sequence[int]) -> Array:
    """Values of the datatype. Whole numbers are exact; a float is exact when a weight is added."""
    found = numbers(tag, int(np.prod(shape)))
    match datatype:
        case "BYTES":
            raw = found.tobytes()
            made = np.empty(len(found), np.object_)
            made[:] = [raw[8 * at : 8 * at + int(number) % 9] for at, number in enumerate(found)]
        case "TEXT":
            made = np.empty(len(found), np.object_)
            made[:] = [f"{number:x}é{'' if number % 3 else chr(0)}".encode() for number in found]
        case "BOOL":
            made = found % 2 == 1
        case "FP16":
            made = (found % 1024).astype(np.float16)
        case "FP32" | "FP64":
            made = (found % (1 << 20)).astype(BY_NAME[datatype].dtype) / 8
        case "BF16":
            made = (found % 0x7F80).astype(np.uint16)
        case _:
            made = found.astype(BY_NAME[datatype].dtype)
    return np.asarray(made.reshape(shape))


def compare(found: Array, wanted: Array) -> None:
    is_float = found.dtype.kind == wanted.dtype.kind == "f"
    is_same = found.shape == wanted.shape and np.array_equal(found, wanted, equal_nan=is_float)
    if not is_same or (is_float and (np.signbit(found) != np.signbit(wanted))[wanted == 0].any()):
        raise WrongAnswer(f"{_short(found)} of {found.shape} instead of {_short(wanted)} of {wanted.shape}")


def _short(array: Array) -> str:
    return repr(array.reshape(-1)[:10].tolist())


def difference(found: Array, given: Array) -> int | None:
    """The weight that was added to all of `given`; None if that is empty."""
    if found.shape != given.shape:
        raise WrongAnswer(f"shape {found.shape} instead of {given.shape}")
    if not found.size:
        return None
    weight = found.reshape(-1)[:1] - given.reshape(-1)[:1]
    compare(found, given + weight)
    return int(weight[0])


class Kind:
    """A model with one input IN and one output OUT, which is IN with the weight added.

    `models` are those whose weights `weights` finds in an answer. `depends` are all whose loads and deaths matter.
    """

    datatype = "INT32"
    transports: tuple[str, ...] = ONE_ANSWER
    is_slow_to_load = False
    has_process = False
    is_sequence = False
    is_function = False
    # It fails if a model that it asks is away.
    asks_others = False
    may_find_no_memory = False
    responses = "one"

    def __init__(self, name: str, depends: Sequence[str] = ()) -> None:
        self.name = name
        self.models: tuple[str, ...] = (name,)
        self.depends = (name, *depends)

    @property
    def has_weight(self) -> bool:
        return self.name in self.models

    def write(self, repository: Path) -> None:
        raise NotImplementedError

    def set_weight(self, repository: Path, weight: int) -> None:
        aside = repository / f".{self.name}"
        aside.write_text(str(weight))
        aside.replace(repository / self.name / "1" / "weight")

    def shape(self, random: Random) -> tuple[int, ...]:
        return random.choice((1, 1, 1, 3)), WIDTH

    def inputs(self, tag: int, random: Random) -> Tensors:
        return {"IN": (self.datatype, values(tag, self.datatype, self.shape(random)))}

    def question(self, tag: int, random: Random) -> Question:
        return Question(self, tag, self.inputs(tag, random))

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        """The weights of `models` with which the answers were made. WrongAnswer if there are none."""
        (answer,) = answers
        return (difference(answer["OUT"], question.inputs["IN"][1]),)


# --- ONNX


class Plain(Kind):
    """One row of eight numbers or several, batched, executed on the thread that submits."""

    dims = "8"
    batched = "max_batch_size: 8 dynamic_batching {}"
    more = ""

    def write(self, repository: Path) -> None:
        write_version(self.graph(1), repository, self.name, self.config())

    def config(self) -> str:
        tensors = f"data_type: TYPE_{self.datatype} dims: [ {self.dims} ]"
        return f'{self.batched} input {{ name: "IN" {tensors} }} output {{ name: "OUT" {tensors} }} {self.more}'

    def set_weight(self, repository: Path, weight: int) -> None:
        aside = repository / f".{self.name}"
        aside.write_bytes(self.graph(weight).SerializeToString())
        aside.replace(repository / self.name / "1" / "model.onnx")

    def graph(self, weight: int) -> Any:
        return build(
            [helper.make_node("Add", ["IN", "WEIGHT"], ["OUT"])],
            [tensor("IN", self.datatype, ["batch", WIDTH])],
            [tensor("OUT", self.datatype, ["batch", WIDTH])],
            [constant("WEIGHT", [weight], self.datatype)],
        )


class Default(Plain):
    """The model that the ports of the platforms ask."""

    transports = (*ONE_ANSWER, "generate", *PLATFORMS)


class Cached(Plain):
    """Few different requests, answered from the response cache."""

    more = "response_cache { enable: true }"

    def inputs(self, tag: int, random: Random) -> Tensors:
        return super().inputs(random.randrange(20), random)


class Limited(Plain):
    """Executions of it and of the other limited one never run at the same time."""

    more = 'instance_group { kind: KIND_CPU count: 2 rate_limiter { priority: 2 resources { name: "lane" count: 1 } } }'


class Prioritized(Plain):
    batched = """max_batch_size: 8 dynamic_batching {
      priority_levels: 3 default_priority_level: 2 max_queue_delay_microseconds: 500 }"""

    def question(self, tag: int, random: Random) -> Question:
        return Question(self, tag, self.inputs(tag, random), parameters={"priority": random.randrange(4)})


class Reshaped(Plain):
    dims = "2, 4"

    def config(self) -> str:
        return super().config().replace("dims: [ 2, 4 ]", "dims: [ 2, 4 ] reshape: { shape: [ 8 ] }")

    def shape(self, random: Random) -> tuple[int, ...]:
        return random.choice((1, 3)), 2, 4


class Lengths(Plain):
    """Lengths from 0 to tens of thousands, which are not batched with others."""

    dims = "-1"
    lengths: tuple[tuple[int, int], ...] = ((0, 3), (1, 40), (1, 3_000), (1, 20_000))

    def graph(self, weight: int) -> Any:
        return build(
            [helper.make_node("Add", ["IN", "WEIGHT"], ["OUT"])],
            [tensor("IN", self.datatype, ["batch", "length"])],
            [tensor("OUT", self.datatype, ["batch", "length"])],
            [constant("WEIGHT", [weight], self.datatype)],
        )

    def shape(self, random: Random) -> tuple[int, ...]:
        return random.choice((1, 1, 2)), random.randrange(*random.choice(self.lengths))


class Unbatched(Lengths):
    """A model whose dimensions are all variable."""

    dims = "-1, -1"
    batched = "max_batch_size: 0"


class Large(Lengths):
    """Tensors that travel in the memory which processes share, and may find it full."""

    transports = ("HTTP binary", *GRPC, *MEMORY)
    lengths = ((10_000, 200_000),)
    may_find_no_memory = True

    def shape(self, random: Random) -> tuple[int, ...]:
        return 1, random.randrange(*self.lengths[0])


class Buckets(Lengths):
    """Batches and lengths are padded to configured sizes."""

    datatype = "FP32"
    lengths = ((1, 33),)
    batched = "max_batch_size: 4 dynamic_batching {}"
    more = (
        'parameters { key: "BATCH_BUCKETS" value { string_value: "1,4" } } '
        'parameters { key: "LENGTH_BUCKETS" value { string_value: "4,32" } }'
    )


class Ragged(Plain):
    """Requests of different lengths are one row, which is cut apart again."""

    datatype = "FP32"
    dims = "-1"

    def config(self) -> str:
        scatter = 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "OUT" source_input: "IN" }'
        return super().config().replace("dims: [ -1 ]", "dims: [ -1 ] allow_ragged_batch: true", 1) + scatter

    def graph(self, weight: int) -> Any:
        return build(
            [helper.make_node("Add", ["IN", "WEIGHT"], ["OUT"])],
            [tensor("IN", self.datatype, ["elements"])],
            [tensor("OUT", self.datatype, ["elements"])],
            [constant("WEIGHT", [weight], self.datatype)],
        )

    def shape(self, random: Random) -> tuple[int, ...]:
        return 1, random.randrange(1, 200)


class Types(Plain):
    """An input of each datatype and any length comes back as it is, with the weight of each row.

    The first of the floats is one that few clients send.
    """

    unusual = (np.nan, np.inf, -np.inf, -0.0, 6e-8, 65504.0)
    datatypes = (*(name for name in BY_NAME if name not in ("BYTES", "BF16")), "TEXT")

    def config(self) -> str:
        return self.batched

    def graph(self, weight: int) -> Any:
        named = [(name, "BYTES" if name == "TEXT" else name) for name in self.datatypes]
        rows = [
            helper.make_node("Shape", ["IN_INT32"], ["shape"], start=0, end=1),
            helper.make_node("Concat", ["shape", "ONE"], ["rows"], axis=0),
            helper.make_node("Expand", ["W", "rows"], ["WEIGHT"]),
        ]
        return build(
            rows + [helper.make_node("Identity", [f"IN_{name}"], [f"OUT_{name}"]) for name in self.datatypes],
            [tensor(f"IN_{name}", datatype, ["batch", f"n_{name}"]) for name, datatype in named],
            [
                tensor("WEIGHT", "INT32", ["batch", 1]),
                *(tensor(f"OUT_{name}", datatype, ["batch", f"n_{name}"]) for name, datatype in named),
            ],
            [constant("W", [[weight]], "INT32"), constant("ONE", [1])],
        )

    def inputs(self, tag: int, random: Random) -> Tensors:
        rows = random.choice((1, 1, 2))
        made = {name: values(tag, name, (rows, random.randrange(1, 6))) for name in self.datatypes}
        for array in made.values():
            if array.dtype.kind == "f":
                array[0, 0] = random.choice(self.unusual)
        return {f"IN_{name}": ("BYTES" if name == "TEXT" else name, array) for name, array in made.items()}

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        for name in self.datatypes:
            compare(answer[f"OUT_{name}"], question.inputs[f"IN_{name}"][1])
        return (difference(answer["WEIGHT"], np.zeros((question.rows, 1), np.int32)),)


class Tally(Plain):
    """A sequence: the sum of its inputs, from its implicit state, and the sum plus the weight."""

    is_sequence = True
    transports = ("HTTP JSON", "HTTP binary", "gRPC", "gRPC stream", *SOCKET, *LIBRARY)
    batching = "oldest { max_candidate_sequences: 3 }"

    def config(self) -> str:
        size = f"data_type: TYPE_INT32 dims: [ {WIDTH} ]"
        return f"""max_batch_size: 8 instance_group {{ kind: KIND_CPU count: 2 }}
          input {{ name: "IN" {size} }} output {{ name: "TOTAL" {size} }} output {{ name: "OUT" {size} }}
          sequence_batching {{
            max_sequence_idle_microseconds: 60000000 {self.batching}
            state {{ input_name: "BEFORE" output_name: "AFTER" {size}
              initial_state {{ name: "nothing" {size} zero_data: true }} }}
          }}"""

    def graph(self, weight: int) -> Any:
        nodes = [
            helper.make_node("Add", ["IN", "BEFORE"], ["TOTAL"]),
            helper.make_node("Identity", ["TOTAL"], ["AFTER"]),
            helper.make_node("Add", ["TOTAL", "WEIGHT"], ["OUT"]),
        ]
        return build(
            nodes,
            [tensor(name, "INT32", ["batch", WIDTH]) for name in ("IN", "BEFORE")],
            [tensor(name, "INT32", ["batch", WIDTH]) for name in ("TOTAL", "OUT", "AFTER")],
            [constant("WEIGHT", [weight], "INT32")],
        )

    def shape(self, random: Random) -> tuple[int, ...]:
        return 1, WIDTH

    def id_of(self, tag: int) -> int | str:
        return tag + 1

    def sequence(self, tag: int, random: Random) -> list[Question]:
        """The requests of one sequence, in order. Their tags begin with `tag`."""
        count = random.choice((1, 2, 5, 12))
        total = np.zeros((1, WIDTH), np.int32)
        questions = []
        for number in range(count):
            inputs = self.inputs(tag + number, random)
            total = total + inputs["IN"][1]
            marks = (number == 0, number == count - 1)
            questions.append(Question(self, tag + number, inputs, "", {}, marks, self.id_of(tag), total))
        return questions

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        assert question.total is not None
        compare(answer["TOTAL"], question.total)
        return (difference(answer["OUT"], question.total),)


# --- Python

_WEIGHT = """
def initialize(self, args):
    import json
    with open(os.path.join(args["model_repository"], args["model_version"], "weight")) as file:
        self.weight = np.int32(file.read())
    self.totals, self.sent = {}, {}

def given(self, request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

def answer(self, array, name="OUT", more=()):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array), *more])
"""
_INT32 = f"""input {{ name: "IN" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "OUT" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
"""
_ONE = """input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_MANY = "model_transaction_policy { decoupled: true }" + _ONE
_GROUP = "instance_group { kind: KIND_CPU count: %d }"


class Script(Kind):
    """A Python model."""

    is_slow_to_load = has_process = True
    code = """
def execute(self, requests):
    return [self.answer(self.given(request) + self.weight) for request in requests]
"""
    config = "dynamic_batching {}" + _INT32 + _GROUP % 2
    max_batch_size = 8

    def write(self, repository: Path) -> None:
        write_model(repository, self.name, _WEIGHT + self.code, self.config, self.max_batch_size)
        self.set_weight(repository, 1)


class Telling(Script):
    """A Python model that logs ids, and says which id and parameters its request has."""

    code = """
def execute(self, requests):
    import json
    answers = []
    for request in requests:
        pb_utils.Logger.log_verbose("asked by " + request.request_id())
        text = json.dumps([request.request_id(), json.loads(request.parameters() or "{}")])
        said = pb_utils.Tensor("SAID", np.array([[text.encode()]] * len(self.given(request)), np.object_))
        answers.append(self.answer(self.given(request) + self.weight, more=[said]))
    return answers
"""
    config = Script.config + 'output { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }'

    def question(self, tag: int, random: Random) -> Question:
        name, is_odd = random.choice(IDS)(tag)
        parameters: dict[str, Any] = {}
        for made in random.sample(PARAMETERS, random.choice((0, 1, 2))):
            more, more_is_odd = made(tag)
            parameters |= more
            is_odd |= more_is_odd
        return Question(self, tag, self.inputs(tag, random), name, parameters, is_doubtful=is_odd)

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        said = {bytes(text) for text in answer["SAID"].reshape(-1)}
        if len(said) != 1:
            raise WrongAnswer(f"several ids and parameters: {said}")
        name, parameters = json.loads(said.pop())
        if not question.is_doubtful and (name, parameters) != (question.id, question.parameters):
            raise WrongAnswer(
                f"id {name!r} and parameters {parameters} instead of {question.id!r} {question.parameters}"
            )
        return (difference(answer["OUT"], question.inputs["IN"][1]),)


# An id, and if it may be refused.
IDS: Sequence[Callable[[int], tuple[str | bytes, bool]]] = (
    lambda tag: ("", False),
    lambda tag: (str(tag), False),
    lambda tag: (f'é😀\x01"\\{tag}', False),
    lambda tag: (str(tag) * 200, False),
    lambda tag: (b"caf\xe9", True),
    lambda tag: (b"\\ud800", True),
)
PARAMETERS: Sequence[Callable[[int], tuple[dict[str, Any], bool]]] = (
    lambda tag: ({"id": ""}, False),
    lambda tag: ({"id": str(tag)}, False),
    lambda tag: ({"tag": tag}, False),
    lambda tag: ({"x": f"é{tag}"}, False),
    lambda tag: ({"flag": tag % 2 == 0, "": "no name"}, False),
    lambda tag: ({"large": 2**70 + tag}, True),
    lambda tag: ({"nan": float("nan")}, True),
    lambda tag: ({"odd": "\ud800"}, True),
    lambda tag: ({"list": [tag, {"id": "in"}]}, True),
    lambda tag: ({"none": None}, True),
)


class AnyBytes(Script):
    """Strings that are no UTF-8, and the datatypes that JSON does not have."""

    transports = ("HTTP binary", *GRPC, *MEMORY, "WebSocket", *LIBRARY)
    datatypes = ("BYTES", "FP16", "BF16")
    code = """
def execute(self, requests):
    answers = []
    for request in requests:
        tensors = [pb_utils.Tensor("OUT_" + name, self.given(request, "IN_" + name)) for name in ("BYTES", "FP16")]
        bits = pb_utils.get_input_tensor_by_name(request, "IN_BF16")
        tensors.append(pb_utils.Tensor.from_dlpack("OUT_BF16", bits.to_dlpack()))
        rows = len(self.given(request, "IN_BYTES"))
        answers.append(self.answer(np.full((rows, 1), self.weight, np.int32), "WEIGHT", tensors))
    return answers
"""
    config = (
        "dynamic_batching {}"
        + _GROUP % 1
        + "".join(
            f'{side} {{ name: "{label}_{name}" data_type: {BY_NAME[name].config_name} dims: [ -1 ] }}'
            for name in datatypes
            for side, label in (("input", "IN"), ("output", "OUT"))
        )
        + 'output { name: "WEIGHT" data_type: TYPE_INT32 dims: [ 1 ] }'
    )

    def inputs(self, tag: int, random: Random) -> Tensors:
        rows = random.choice((1, 2))
        return {f"IN_{name}": (name, values(tag, name, (rows, random.choice((1, 3, 50))))) for name in self.datatypes}

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        for name in self.datatypes:
            compare(answer[f"OUT_{name}"], question.inputs[f"IN_{name}"][1])
        return (difference(answer["WEIGHT"], np.zeros((question.rows, 1), np.int32)),)


class Grown(Script):
    """An answer whose shape the value of the request decides: as many different ones as it likes."""

    code = """
def execute(self, requests):
    answers = []
    for request in requests:
        first = self.given(request)[0, 0]
        answers.append(self.answer(np.arange(abs(int(first)) % 3000, dtype=np.int32)[None] + first + self.weight))
    return answers
"""
    config = Script.config.replace("dims: [ 8 ] }\ninstance", "dims: [ -1 ] }\ninstance")

    def shape(self, random: Random) -> tuple[int, ...]:
        return 1, WIDTH

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        first = question.inputs["IN"][1][0, 0]
        wanted = np.arange(abs(int(first)) % 3000, dtype=np.int32)[None] + first
        return (difference(answer["OUT"], wanted),)


class Optional(Script):
    """An input may be absent, and the instances are limited to one execution with those of `limited`."""

    code = """
def execute(self, requests):
    answers = []
    for request in requests:
        more = pb_utils.get_input_tensor_by_name(request, "MORE")
        array = self.given(request) + self.weight
        answers.append(self.answer(array if more is None else array + more.as_numpy()))
    return answers
"""
    config = (
        "dynamic_batching {}"
        + _INT32
        + f'input {{ name: "MORE" data_type: TYPE_INT32 dims: [ {WIDTH} ] optional: true }}'
        + 'instance_group { kind: KIND_CPU rate_limiter { resources { name: "lane" count: 1 } } }'
    )

    def inputs(self, tag: int, random: Random) -> Tensors:
        made = dict(super().inputs(tag, random))
        if random.random() < 0.5:
            made["MORE"] = ("INT32", values(~tag & 0xFFFF, "INT32", made["IN"][1].shape))
        return made

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        wanted = question.inputs["IN"][1]
        if "MORE" in question.inputs:
            wanted = wanted + question.inputs["MORE"][1]
        return (difference(answer["OUT"], wanted),)


class Hanging(Script):
    """A request whose first number is HANGS never ends. Its limit does."""

    HANGS = -(2**31)
    code = """
def execute(self, requests):
    if any(self.given(request).flat[0] == -(2 ** 31) for request in requests):
        time.sleep(3600)
    return [self.answer(self.given(request) + self.weight) for request in requests]
"""
    config = Script.config + 'parameters { key: "EXECUTION_LIMIT_SECONDS" value { string_value: "1" } }'


class Crowded(Script):
    """Tensors that travel in the memory which the process of the model shares, and find it full."""

    transports = ("HTTP binary", *GRPC, *MEMORY)
    config = "dynamic_batching {}" + _INT32.replace(f"[ {WIDTH} ]", "[ -1 ]") + _GROUP % 2

    def shape(self, random: Random) -> tuple[int, ...]:
        return 1, random.randrange(*random.choice(((1, 100), (8_000, 200_000))))


class Talking(Script):
    """Pieces of text, each with the weight, its number and the word in brackets of the prompt."""

    transports = ("completions", "chat")
    max_batch_size = 0
    config = _MANY.replace("TYPE_INT32", "TYPE_STRING") + _GROUP % 2
    code = """
def execute(self, requests):
    for request in requests:
        sender, word = request.get_response_sender(), self.given(request).flat[0].decode().split("[")[1].split("]")[0]
        for number in range(int(word[0]) + 1):
            piece = f"{self.weight}:{number}:{word} "
            sender.send(self.answer(np.array([piece.encode()], np.object_)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

    def inputs(self, tag: int, random: Random) -> Tensors:
        (number,) = numbers(tag, 1)
        return {"IN": ("BYTES", np.array([f"Tell of [{number % 10}{number:x}é😀]".encode()], np.object_))}

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        word = question.inputs["IN"][1][0].decode().partition("[")[2][:-1]
        weight, _, _ = answer["OUT"][0].decode().partition(":")
        wanted = "".join(f"{weight}:{number}:{word} " for number in range(int(word[0]) + 1)).encode()
        compare(answer["OUT"], np.array([wanted], np.object_))
        return (int(weight),)


class Later(Script):
    """Answers from a thread, after `execute` has returned."""

    code = """
def execute(self, requests):
    for request in requests:
        sender, array = request.get_response_sender(), self.given(request) + self.weight
        send = lambda sender=sender, array=array: sender.send(
            self.answer(array), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        threading.Timer(0.001, send).start()
"""
    config = "model_transaction_policy { decoupled: true } " + Script.config
    transports = MANY_ANSWERS[:2] + LIBRARY


class Words(Script):
    """Answers IN = [n] with n responses."""

    transports = MANY_ANSWERS
    max_batch_size = 0
    config = _MANY + _GROUP % 1
    responses = "many"
    code = """
def execute(self, requests):
    for request in requests:
        sender, given = request.get_response_sender(), self.given(request)
        for number in range(abs(int(given.flat[0])) % 64):
            sender.send(self.answer(given + self.weight + np.int32(number)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

    def shape(self, random: Random) -> tuple[int, ...]:
        return (1,) if self.max_batch_size == 0 else (1, 1)

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        given = question.inputs["IN"][1]
        count = abs(int(given.flat[0])) % 64
        if len(answers) != count:
            raise WrongAnswer(f"{len(answers)} responses instead of {count}")
        found = {difference(answer["OUT"], given + np.int32(at)) for at, answer in enumerate(answers)} or {None}
        if len(found) != 1:
            raise WrongAnswer(f"responses with the weights {found}, or not in order")
        return (found.pop(),)


class Tokens(Words):
    """The same in as many iterations of its execution."""

    max_batch_size = 4
    config = _MANY + "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }" + _GROUP % 1
    code = """
def execute(self, requests):
    for request in requests:
        given, key, sender = self.given(request), request.correlation_id(), request.get_response_sender()
        begins = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        number = self.sent[key] = 0 if begins else self.sent[key] + 1
        count = abs(int(given.flat[0])) % 64
        response = self.answer(given + self.weight + np.int32(number)) if count else None
        if number + 1 < count:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            sender.send(response)
        else:
            del self.sent[key]
            sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Asking(Script):
    """Asks `plain` and `python`, which add their weights, and adds its own: BLS."""

    transports = (*HTTP, *GRPC, *LIBRARY)
    asks_others = True
    code = """
async def execute(self, requests):
    import asyncio
    return await asyncio.gather(*(self.one(request) for request in requests))

async def one(self, request):
    array = self.given(request)
    tensors = [pb_utils.Tensor("WEIGHT", np.full((len(array), 1), self.weight, np.int32))]
    for at, model in enumerate(("plain", "python")):
        asked = pb_utils.InferenceRequest(
            request_id=request.request_id(), model_name=model, requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", array)])
        response = await asked.async_exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        array = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        tensors.append(pb_utils.Tensor(f"OUT{at}", array))
    return pb_utils.InferenceResponse(tensors)
"""
    config = (
        _INT32.partition("\n")[0]
        + "".join(f'output {{ name: "OUT{at}" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}' for at in range(2))
        + 'output { name: "WEIGHT" data_type: TYPE_INT32 dims: [ 1 ] }'
        + "dynamic_batching {}"
        + _GROUP % 2
    )

    def __init__(self, name: str) -> None:
        super().__init__(name, ("plain", "python"))
        self.models = self.depends

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        own = difference(answer["WEIGHT"], np.zeros((question.rows, 1), np.int32))
        first = difference(answer["OUT0"], question.inputs["IN"][1])
        return own, first, difference(answer["OUT1"], answer["OUT0"])


class Remembering(Tally, Script):
    """A sequence whose sum is in the memory of a Python model, under the id: a string."""

    is_slow_to_load = has_process = True
    transports = ("HTTP JSON", "HTTP binary", "gRPC", "gRPC stream", *SOCKET, *LIBRARY)
    code = """
def execute(self, requests):
    answers = []
    for request in requests:
        key, flags = request.correlation_id(), request.flags()
        if not key:  # a slot without a request in the batch
            answers.append(self.answer(self.given(request)))
            continue
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.totals[key] = np.zeros((1, 8), np.int32)
        total = self.totals[key] = self.totals[key] + self.given(request)
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            del self.totals[key]
        answers.append(self.answer(total + self.weight, more=[pb_utils.Tensor("TOTAL", total)]))
    return answers
"""
    text = (
        _INT32
        + f'output {{ name: "TOTAL" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}'
        + "sequence_batching { max_sequence_idle_microseconds: 60000000 direct {} }"
        + _GROUP % 2
    )

    def write(self, repository: Path) -> None:
        write_model(repository, self.name, _WEIGHT + self.code, self.text, 4)
        self.set_weight(repository, 1)

    def set_weight(self, repository: Path, weight: int) -> None:
        Kind.set_weight(self, repository, weight)

    def id_of(self, tag: int) -> int | str:
        return f"the sequence {tag}"


# --- ensembles


class Chain(Kind):
    """`plain`, and `python` on its answer."""

    transports = (*HTTP, *GRPC, *MEMORY, *LIBRARY)

    def __init__(self, name: str) -> None:
        super().__init__(name, ("plain", "python"))
        self.models = ("plain", "python")

    def write(self, repository: Path) -> None:
        tensors = [("TYPE_INT32", [WIDTH])]
        write_ensemble(
            repository,
            self.name,
            [("IN", *tensors[0])],
            [("FIRST", *tensors[0]), ("OUT", *tensors[0])],
            [step("plain", {"IN": "IN"}, {"OUT": "FIRST"}), step("python", {"IN": "FIRST"}, {"OUT": "OUT"})],
        )

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        first = difference(answer["FIRST"], question.inputs["IN"][1])
        return first, difference(answer["OUT"], answer["FIRST"])


class Relay(Words):
    """`words`, and each of its responses through a model with several instances: in the order of `words`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ("words", "single"))
        self.models = ("words",)

    def write(self, repository: Path) -> None:
        write_ensemble(
            repository,
            self.name,
            [("IN", "TYPE_INT32", [1])],
            [("OUT", "TYPE_INT32", [1])],
            [step("words", {"IN": "IN"}, {"OUT": "WORD"}), step("single", {"IN": "WORD"}, {"OUT": "OUT"})],
            batch=0,
        )
        config = repository / self.name / "config.pbtxt"
        config.write_text(config.read_text() + "model_transaction_policy { decoupled: true }")


class Single(Script):
    """A model that returns its number, sometimes late."""

    max_batch_size = 0
    config = _ONE + _GROUP % 3
    transports = ("HTTP JSON",)
    code = """
def execute(self, requests):
    answers = []
    for request in requests:
        given = self.given(request)
        time.sleep(0.0005 * (int(given[0]) % 3))
        answers.append(self.answer(given))
    return answers
"""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.models = ()

    def shape(self, random: Random) -> tuple[int, ...]:
        return (1,)

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        compare(answers[0]["OUT"], question.inputs["IN"][1])
        return ()


# --- models whose files other programs make: without weights of a load


class Fixed(Kind):
    """The answer to a row is known from the start; a tag chooses rows."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.models = ()

    @cached_property
    def rows(self) -> Array:
        return self.table()[0]

    @cached_property
    def wanted(self) -> Array:
        return self.table()[1]

    @cached_property
    def known(self) -> dict[Any, int]:
        return {_key(row): at for at, row in enumerate(self.rows)}

    def table(self) -> tuple[Array, Array]:
        raise NotImplementedError

    def picked(self, tag: int, random: Random) -> list[int]:
        count = random.choice((1, 1, 3))
        return [int(number) % len(self.rows) for number in numbers(tag, count)]

    input, output = "IN", "OUT"

    def inputs(self, tag: int, random: Random) -> Tensors:
        return {self.input: (self.datatype, self.rows[self.picked(tag, random)])}

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        (answer,) = answers
        at = [self.known[_key(row)] for row in question.inputs[self.input][1]]
        found, wanted = answer[self.output], self.wanted[at]
        if len(found) != len(wanted) or not np.allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6):
            raise WrongAnswer(f"{_short(found)} instead of {_short(wanted)}")
        return ()


def _key(row: Array) -> bytes:
    return bytes(row[0]) if row.dtype == object else row.tobytes()


class Trees(Fixed):
    datatype = "FP32"
    input, output = "input__0", "output__0"

    def table(self) -> tuple[Array, Array]:
        import xgboost

        rows = np.random.default_rng(0).normal(size=(512, 5)).astype(np.float32)
        matrix = xgboost.DMatrix(rows, label=rows[:, 0] * 2 + np.sin(9 * rows[:, 1]))
        self.trained = xgboost.train({"max_depth": 6, "nthread": 1}, matrix, 5)
        return rows, self.trained.predict(matrix).reshape(-1, 1)

    def write(self, repository: Path) -> None:
        (repository / self.name / "1").mkdir(parents=True)
        self.table()
        self.trained.save_model(repository / self.name / "1" / "xgboost.json")
        (repository / self.name / "config.pbtxt").write_text(
            """backend: "fil" max_batch_size: 16 dynamic_batching {}
            parameters { key: "model_type" value { string_value: "xgboost_json" } }
            parameters { key: "is_classifier" value { string_value: "false" } }
            input { name: "input__0" data_type: TYPE_FP32 dims: [ 5 ] }
            output { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }"""
        )


class Text(Fixed):
    datatype = "BYTES"
    transports = (*ONE_ANSWER, "embeddings")
    input, output = "text", "embedding"

    def table(self) -> tuple[Array, Array]:
        random = Random(1)
        texts = sorted({" ".join(random.choices(WORDS[5:], k=random.randrange(1, 9))) for _ in range(200)})
        rows = np.array([[text.encode()] for text in texts], np.object_)
        return rows, np.array([mean_of(text) for text in texts], np.float32)

    def write(self, repository: Path) -> None:
        write_folder(repository / self.name)


# --- functions, in the shape of the library


@trident.model(name="doubled", inputs={"IN": ("INT32", [WIDTH])}, outputs={"OUT": ("INT32", [WIDTH])}, max_batch_size=8)
def doubled(IN: Array) -> Array:
    return np.asarray(2 * IN)


@trident.model(name="counted", inputs={"IN": ("INT32", [1])}, outputs={"OUT": ("INT32", [1])})
def counted(IN: Array) -> Iterator[Array]:
    for number in range(abs(int(IN[0])) % 64):
        yield IN + np.int32(number)


FUNCTIONS = (doubled, counted)


class Function(Kind):
    """A Python function, which has no files."""

    is_function = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.models = ()

    def write(self, repository: Path) -> None:
        """The process that has the library has the function."""

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        compare(answers[0]["OUT"], 2 * question.inputs["IN"][1])
        return ()


class Generator(Function):
    transports = MANY_ANSWERS
    responses = "many"

    def shape(self, random: Random) -> tuple[int, ...]:
        return (1,)

    def weights(self, question: Question, answers: Sequence[Answer]) -> Weights:
        given = question.inputs["IN"][1]
        wanted = [given + np.int32(number) for number in range(abs(int(given[0])) % 64)]
        compare(np.array([answer["OUT"] for answer in answers]), np.array(wanted))
        return ()


KINDS: tuple[Kind, ...] = (
    Default("plain"),
    Cached("cached"),
    Limited("limited"),
    Prioritized("prioritized"),
    Reshaped("reshaped"),
    Lengths("lengths"),
    Unbatched("unbatched"),
    Large("large"),
    Buckets("buckets"),
    Ragged("ragged"),
    Types("types"),
    Tally("tally"),
    Script("python"),
    Telling("telling"),
    AnyBytes("bytes"),
    Grown("grown"),
    Optional("optional", ("limited",)),
    Hanging("hanging"),
    Crowded("crowded"),
    Talking("talking"),
    Later("later"),
    Words("words"),
    Tokens("tokens"),
    Asking("asking"),
    Remembering("remembering"),
    Chain("chain"),
    Single("single"),
    Relay("relay"),
    Trees("trees"),
    Text("text"),
    Function("doubled"),
    Generator("counted"),
)
BY_KIND = {kind.name: kind for kind in KINDS}


def write_all(repository: Path, kinds: Sequence[Kind] = KINDS) -> None:
    repository.mkdir()
    for kind in kinds:
        kind.write(repository)
