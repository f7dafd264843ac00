"""The queue of a model: batches, preferred sizes, delay, priorities, timeouts and limits; refused configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.held import Held, counts, document, infer, refusal, tensors, write_held
from tests.unit.onnx_models import identity, write_version

ONE_TENSOR = tensors("input", "INPUT INT32 1") + tensors("output", "OUTPUT INT32 1")
SHAPES = tensors("input", "INPUT INT32 -1", "INPUT1 INT32 2") + tensors("output", "OUTPUT INT32 -1")
OPTIONAL = tensors("input", "INPUT INT32 1", "A INT32 1 optional: true", "B INT32 -1 optional: true")
OPTIONAL += tensors("output", "OUTPUT INT32 1")
RAGGED = tensors("input", "INPUT INT32 -1 allow_ragged_batch: true") + tensors("output", "OUTPUT INT32 -1")
LONG = "100000000"
POLICY = "default_queue_policy {{ {} }}"
LEVELS = "priority_levels: 3 default_priority_level: 2 "
MODELS = {
    "default": f"max_batch_size: 4 {ONE_TENSOR}",
    "unbatched": f"max_batch_size: 0 {ONE_TENSOR} dynamic_batching {{ }}",
    "plain": f"max_batch_size: 4 {ONE_TENSOR} dynamic_batching {{ }}",
    # Without a policy Triton forms batches ahead, while all instances are busy.
    "preferred": f"max_batch_size: 8 {ONE_TENSOR} dynamic_batching {{ preferred_batch_size: [ 2, 6 ] "
    f"{POLICY.format('max_queue_size: 100')} }}",
    "waits": f"max_batch_size: 4 {ONE_TENSOR} dynamic_batching {{ preferred_batch_size: [ 3 ] "
    f"max_queue_delay_microseconds: {LONG} }}",
    "shapes": f"max_batch_size: 4 {SHAPES} dynamic_batching {{ }}",
    "optional": f"max_batch_size: 8 {OPTIONAL} dynamic_batching {{ }}",
    "ragged": f"max_batch_size: 4 {RAGGED} dynamic_batching {{ }}",
    "levels": f"max_batch_size: 1 {ONE_TENSOR} dynamic_batching {{ {LEVELS} }}",
    "limit": f"max_batch_size: 2 {ONE_TENSOR} dynamic_batching {{ {POLICY.format('max_queue_size: 2')} }}",
    "level_limits": f"max_batch_size: 1 {ONE_TENSOR} dynamic_batching {{ {LEVELS} "
    "priority_queue_policy { key: 1 value { max_queue_size: 1 } } "
    f"{POLICY.format('max_queue_size: 2')} }}",
    "reject": f"max_batch_size: 1 {ONE_TENSOR} dynamic_batching {{ "
    f"{POLICY.format(f'default_timeout_microseconds: {LONG} allow_timeout_override: true')} }}",
    "override_alone": f"max_batch_size: 1 {ONE_TENSOR} dynamic_batching {{ "
    f"{POLICY.format('allow_timeout_override: true')} }}",
    "delays": f"max_batch_size: 1 {ONE_TENSOR} dynamic_batching {{ "
    + POLICY.format(f"timeout_action: DELAY default_timeout_microseconds: {LONG} allow_timeout_override: true")
    + " }",
    "ordered": f"max_batch_size: 2 {ONE_TENSOR} dynamic_batching {{ preserve_ordering: true }}",
}
DYNAMIC = {
    "preferred 0": "preferred_batch_size: [ 0 ]",
    "preferred -1": "preferred_batch_size: [ -1 ]",
    "preferred 5": "preferred_batch_size: [ 2, 5 ]",
    "preferred twice": "preferred_batch_size: [ 2, 2 ]",
    "no default level": "priority_levels: 2",
    "default level 3": "priority_levels: 2 default_priority_level: 3",
    "default level alone": "default_priority_level: 3",
    "policy 0": "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value { } }",
    "policy 3": "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }",
    "policy alone": "priority_queue_policy { key: 3 value { max_queue_size: 1 } }",
    "ordered levels": "preserve_ordering: true priority_levels: 2 default_priority_level: 1",
    "ordered level": "preserve_ordering: true priority_levels: 1 default_priority_level: 1",
    "ordered delay": "preserve_ordering: true default_queue_policy { timeout_action: DELAY "
    "default_timeout_microseconds: 1 }",
    "ordered delay 0": "preserve_ordering: true default_queue_policy { timeout_action: DELAY }",
    "ordered level delay": "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
    "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }",
}
OTHER_CONFIGS = {
    "preferred, no batches": "max_batch_size: 0 dynamic_batching { preferred_batch_size: [ 1 ] }",
    "batch -1": "max_batch_size: -1",
}
OPTIONS = ("--model-control-mode=explicit", *[f"--load-model={name}" for name in MODELS])
OTHERWISE: dict[str, tuple[str, Any]] = {
    "shapes: optional alone": (
        "a newer release refuses it",
        {
            "status": 400,
            "error": "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 1 inputs for model "
            "'optional'. Got input(s) ['A'], but missing required input(s) ['INPUT']. Please provide all required "
            "input(s).",
        },
    ),
}


def configs() -> dict[str, str]:
    return {name: f"max_batch_size: 4 dynamic_batching {{ {text} }}" for name, text in DYNAMIC.items()} | OTHER_CONFIGS


def refused_name(name: str) -> str:
    return "refused_" + name.replace(" ", "_").replace("-", "minus").replace(",", "")


def write_models(folder: Path) -> None:
    for name, config in MODELS.items():
        write_held(folder, name, config)
    for name, config in configs().items():
        write_version(identity("INT32", ["batch", 1]), folder, refused_name(name), config)


def rows(first: int, count: int = 1, **parameters: Any) -> Any:
    """A request of `count` items, which are numbered from `first`."""
    return document([("INPUT", "INT32", [count, 1], list(range(first, first + count)))], parameters=parameters)


def ask_refused(server: ServerProcess) -> Answers:
    return {name: refusal(server, refused_name(name)) for name in configs()}


def batches(held: Held) -> Any:
    """The values of INPUT in each request of each execution."""
    return [[each["INPUT"][0] for each in execution] for execution in held.executions]


def ask_batches(server: ServerProcess) -> Answers:
    """Requests of these sizes wait while one is executed."""
    found: Answers = {}
    for model, sizes in (
        ("default", [1, 2, 1]),
        ("plain", [1, 1, 1, 1, 1, 1]),
        ("plain", [3, 2, 1]),
        ("plain", [2, 3, 1]),
        ("plain", [4, 1, 5]),
        ("preferred", [1, 1, 1]),
        ("preferred", [1] * 7),
        ("preferred", [3, 4]),
        ("preferred", [1, 4, 2, 2]),
        ("preferred", [5, 3]),
        ("ordered", [1, 1, 1]),
    ):
        with Held(server, model) as held:
            held.start(rows(0))
            for number, size in enumerate(sizes):
                held.send(rows(10 * (number + 1), size))
        found[f"{model} {sizes}"] = batches(held)
        found[f"{model} {sizes}, answers"] = held.answers
    with Held(server, "unbatched") as held:
        held.start(document([("INPUT", "INT32", [1], [0])]))
        for number in range(1, 3):
            held.send(document([("INPUT", "INT32", [1], [number])]))
    found["unbatched"] = [batches(held), held.answers]
    return found


def ask_sizes(server: ServerProcess) -> Answers:
    """Sizes of requests that are too large, and shapes that are no batch."""
    found: Answers = {}
    for model in ("default", "plain", "unbatched"):
        for shape in ([5, 1], [0, 1], [1], [1, 1, 1], [4, 1], [1, 2]):
            count = 1
            for each in shape:
                count *= each
            sent = document([("INPUT", "INT32", shape, list(range(count)))])
            found[f"{model} {shape}"] = infer(server, model, sent)
    return found


def ask_delay(server: ServerProcess) -> Answers:
    """A batch waits until it has a preferred size, or the largest."""
    held = Held(server, "waits")
    for number in range(3):
        held.send(rows(number))
    held.wait(2)
    held.send(rows(10, 2))
    held.send(rows(20, 2))
    held.wait(3)
    held.send(rows(30))
    held.wait(5)
    held.send(rows(40, 4))
    held.wait(6)
    return {"executions": batches(held), "answers": held.answers}


def ask_shapes(server: ServerProcess) -> Answers:
    """Requests with other shapes or inputs than those before them."""
    found: Answers = {}

    def pair(number: int, width: int, items: int = 1) -> Any:
        values = [number] * (width * items)
        second = ("INPUT1", "INT32", [items, 2], [0, 0] * items)
        return document([("INPUT", "INT32", [items, width], values), second])

    with Held(server, "shapes") as held:
        held.start(pair(0, 1))
        for number, (width, items) in enumerate([(2, 1), (2, 2), (3, 1), (2, 1), (2, 1), (3, 1), (3, 1)]):
            held.send(pair(number + 1, width, items))
    found["shapes"] = [batches(held), held.answers]
    with Held(server, "ragged") as held:
        held.start(document([("INPUT", "INT32", [1, 1], [0])]))
        for width in (2, 3, 1):
            held.send(document([("INPUT", "INT32", [1, width], [width] * width)]))
    found["ragged"] = [batches(held), held.answers]

    def some(number: int, *names: str, width: int = 1) -> Any:
        inputs = [("INPUT", "INT32", [1, 1], [number])]
        inputs += [(name, "INT32", [1, width], [number] * width) for name in names]
        return document(inputs)

    with Held(server, "optional") as held:
        held.start(some(0))
        for number, names in enumerate(["", "", "A", "A", "AB", "BA", "B", "", "A"]):
            held.send(some(number + 1, *names))
        held.send(some(20, "B", width=1))
        held.send(some(21, "B", width=2))
    found["optional"] = [batches(held), held.answers]
    found["optional alone"] = infer(server, "optional", document([("A", "INT32", [1, 1], [1])]))
    other = document([("INPUT", "INT32", [1, 1], [1]), ("A", "INT32", [2, 1], [1, 2])])
    found["other size"] = infer(server, "optional", other)
    return found


def ask_priorities(server: ServerProcess) -> Answers:
    found: Answers = {}
    for model in ("levels", "plain"):
        with Held(server, model) as held:
            held.start(rows(0))
            for number, level in enumerate([3, 2, 1, 0, 4, 1, None, 3, 2**32]):
                held.send(rows(number + 1, **({} if level is None else {"priority": level})))
        found[model] = batches(held)
    for value in ("1", -1, 1.5, True, 2**63, 2**64):
        found[f"priority {value!r}"] = infer(server, "levels", rows(1, priority=value))
    return found


def failures(server: ServerProcess, model: str) -> Any:
    """The counts of requests that failed, by reason."""
    reasons = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    name = "nv_inference_request_failure"
    return {each: server.metric(name, f'model="{model}"', f'reason="{each}"') for each in reasons}


def ask_limits(server: ServerProcess) -> Answers:
    found: Answers = {}
    with Held(server, "limit") as held:
        held.start({"id": "0", **rows(0)})
        for number in range(1, 6):
            held.send({"id": str(number), **rows(number)})
        found["refused"] = held.answered
        found["pending"] = held.pending
    found["answers"] = held.answers
    found["executions"] = batches(held)
    found["counts"] = counts(server, "limit")
    with Held(server, "limit") as held:
        held.start(rows(0, 2))
        for number in range(1, 4):
            held.send(rows(number, 2))
        found["of two items"] = held.answered
    with Held(server, "level_limits") as held:
        held.start(rows(0))
        for number, level in enumerate([1, 1, 2, 2, 2, 3, 3, 3, 0]):
            held.send(rows(number + 1, priority=level))
        found["refused by level"] = held.answered
    found["levels"] = batches(held)
    return found


def ask_timeouts(server: ServerProcess) -> Answers:
    found: Answers = {}
    for model in ("reject", "override_alone", "delays", "plain"):
        with Held(server, model) as held:
            held.start(rows(0))
            for number, timeout in enumerate([None, 1, 0, 2 * int(LONG), 2]):
                held.send(rows(number + 1, **({} if timeout is None else {"timeout": timeout})))
        found[model] = [batches(held), held.answers]
        found[f"{model} failures"] = failures(server, model)
        found[f"{model} counts"] = counts(server, model)
    for value in ("1", -1, 1.5, True, 2**63, 2**64):
        found[f"timeout {value!r}"] = infer(server, "plain", rows(1, timeout=value))
    return found
