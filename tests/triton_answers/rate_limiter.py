"""The rate limiter: whose turn it is, resources that several executions share, and models that need too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.held import Held, document, refusal, tensors, write_held
from tests.unit.onnx_models import identity, write_version

ONE_TENSOR = tensors("input", "INPUT INT32 1") + tensors("output", "OUTPUT INT32 1")
# By model: its limits.
TURNS = {
    "first": "resources [ { name: 'R' count: 1 } ]",
    "second": "resources [ { name: 'R' count: 1 } ] priority: 2",
}
TOGETHER = {
    "one_of_two": "resources [ { name: 'S' global: true count: 1 } ]",
    "other_of_two": "resources [ { name: 'S' global: true count: 1 } ] priority: 2",
    "both_of_two": "resources [ { name: 'S' global: true count: 2 } ]",
}
REFUSED = {
    "too many": "resources [ { name: 'R' count: 2 } ]",
    "too many of a group": "resources [ { name: 'S' global: true count: 3 } ]",
    "global and not": "resources [ { name: 'R' count: 1 }, { name: 'S' count: 1 } ]",
    "not and global": "resources [ { name: 'R' global: true count: 1 } ]",
    "global and of a device": "resources [ { name: 'N' global: true count: 1 }, { name: 'N' count: 1 } ]",
    "unlimited": "resources [ { name: 'OTHER' global: true count: 3 } ]",
    "none of it": "resources [ { name: 'R' count: 0 } ]",
    "no name": "resources [ { count: 1 } ]",
    "priority only": "priority: 3",
}
OPTIONS = (
    "--model-control-mode=explicit",
    "--rate-limit=execution_count",
    "--rate-limit-resource=R:1",
    "--rate-limit-resource=S:2",
    *[f"--load-model={name}" for name in (*TURNS, *TOGETHER)],
)
IMPLIED = "a resource that no option names has its implied limit, also beside options for others"
OTHERWISE: dict[str, tuple[str, Any]] = {
    "refused: global and of a device": (
        IMPLIED,
        'Resource "N" is present as both global and device-specific resource in the model configuration.',
    ),
    "refused: unlimited": (IMPLIED, "loaded"),
    "refused: no name": (IMPLIED, "loaded"),
}


def limited(text: str) -> str:
    return f"instance_group {{ count: 1 kind: KIND_CPU rate_limiter {{ {text} }} }}"


def refused_name(name: str) -> str:
    return "refused_" + name.replace(" ", "_")


def write_models(folder: Path) -> None:
    for name, text in (TURNS | TOGETHER).items():
        write_held(folder, name, f"max_batch_size: 1 {ONE_TENSOR} {limited(text)}")
    for name, text in REFUSED.items():
        write_version(identity("INT32"), folder, refused_name(name), f"max_batch_size: 1 {limited(text)}")


def row(value: int) -> Any:
    return document([("INPUT", "INT32", [1, 1], [value])])


def order(*held: Held) -> str:
    """The first letters of the models, in the order of their executions."""
    starts = sorted((start, each.model[0]) for each in held for start in each.starts)
    return "".join(letter for _, letter in starts)


def ask_refused(server: ServerProcess) -> Answers:
    return {name: refusal(server, refused_name(name)) for name in REFUSED}


def ask_turns(server: ServerProcess) -> Answers:
    """One of priority 1 and one of priority 2 need the same resource, and always have requests."""
    with Held(server, "first") as first, Held(server, "second") as second:
        first.start(row(0))
        for number in range(1, 24):
            first.send(row(number))
        for number in range(12):
            second.send(row(number))
        first.release()
        second.release()
    return {"order": order(first, second)}


def ask_together(server: ServerProcess) -> Answers:
    """Two executions share a resource of which there are two; a third needs both."""
    found: Answers = {}
    with Held(server, "one_of_two") as one, Held(server, "other_of_two") as other, Held(server, "both_of_two") as both:
        one.start(row(1))
        other.start(row(2))
        both.send(row(3))
        one.send(row(4))
        found["executed"] = [each.executed for each in (one, other, both)]
        found["pending"] = [each.pending for each in (one, other, both)]
        for each in (one, other, both):
            each.release()
    found["answers"] = [one.answers, other.answers, both.answers]
    return found
