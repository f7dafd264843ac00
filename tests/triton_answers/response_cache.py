"""The response cache: what hits, what does not, what is counted; refused configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.ensembles.ensemble_models import ensemble_config, step
from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.held import Held, counts, document, infer, refusal, tensors, write_held
from tests.unit.onnx_models import add_sub, identity, picky, strings, write_version

ONE = "instance_group { count: 1 kind: KIND_CPU } "
CACHE = "response_cache { enable: true } "
A, B = ("A", "TYPE_INT32", [-1]), ("B", "TYPE_INT32", [-1])
MODELS = ("ints", "pairs", "texts", "batched", "picky", "uncached", "whole", "of_cached", "held")
OPTIONS = (
    "--model-control-mode=explicit",
    "--cache-config=local,size=1048576",
    *[f"--load-model={name}" for name in MODELS],
)
KEY = "the key has all that decides an answer: shapes, requested outputs, parameters and marks of a sequence, too"
MISS, HIT = [0, 1, 1], [1, 0, 0]
ROW, OUTPUT0, OUTPUT1 = [[1, 2], [1, 2]], [[4, 6], [1, 2]], [[-2, -2], [1, 2]]
OTHERWISE: dict[str, tuple[str, Any]] = {
    "hits: ints, as a stranger": (KEY, [{"OUTPUT0": ROW}, MISS]),
    "hits: ints, as a sequence": (KEY, [{"OUTPUT0": ROW}, MISS]),
    "hits: ints, other shape": (KEY, [{"OUTPUT0": [[1, 2], [2, 1]]}, MISS]),
    "hits: pairs, one output": (KEY, [{"OUTPUT1": OUTPUT1}, MISS]),
    "hits: pairs, one output again": (KEY, [{"OUTPUT1": OUTPUT1}, HIT]),
    "hits: pairs, both outputs": (KEY, [{"OUTPUT0": OUTPUT0, "OUTPUT1": OUTPUT1}, MISS]),
    "hits: picky, fails again": ("a failure is not stored; Triton answers without outputs", [500, [0, 1, 0]]),
}
REFUSED = {
    "sequences": "max_batch_size: 4 sequence_batching { }",
    "decoupled": "max_batch_size: 4 model_transaction_policy { decoupled: true }",
}


def write_models(folder: Path) -> None:
    ints = identity("INT32", ["batch", "n"])
    write_version(ints, folder, "ints", f"max_batch_size: 8 {ONE} {CACHE}")
    write_version(ints, folder, "uncached", f"max_batch_size: 8 {ONE}")
    write_version(add_sub("INT32", 2), folder, "pairs", f"max_batch_size: 8 {ONE} {CACHE}")
    write_version(strings(), folder, "texts", f"max_batch_size: 8 {ONE} {CACHE}")
    write_version(ints, folder, "batched", f"max_batch_size: 8 {ONE} {CACHE} dynamic_batching {{ }}")
    write_version(picky(), folder, "picky", f"max_batch_size: 8 {ONE} {CACHE}")
    one = tensors("input", "INPUT INT32 1") + tensors("output", "OUTPUT INT32 1")
    write_held(folder, "held", f"max_batch_size: 4 {one} {CACHE}")
    for name, inner, cached in (("whole", "uncached", True), ("of_cached", "ints", False)):
        (folder / name / "1").mkdir(parents=True)
        config = ensemble_config([A], [B], [step(inner, {"INPUT0": "A"}, {"OUTPUT0": "B"})], batch=8)
        (folder / name / "config.pbtxt").write_text(config + (CACHE if cached else ""))
    for name, config in REFUSED.items():
        write_version(ints, folder, f"refused_{name}", f"{config} {CACHE}")


def ints(*values: int, name: str = "INPUT0", shape: list[int] | None = None, **more: Any) -> Any:
    return document([(name, "INT32", shape or [1, len(values)], list(values))], **more)


def ask_refused(server: ServerProcess) -> Answers:
    return {name: refusal(server, f"refused_{name}") for name in REFUSED}


def cached(server: ServerProcess, model: str) -> list[int]:
    """Hits, misses and executions."""
    found = counts(server, model)
    return [found["requests"]["cache_hit"], found["requests"]["cache_miss"], found["executions"]]


def ask_hits(server: ServerProcess) -> Answers:
    """The answer to each request, and what it adds to hits, misses and executions."""
    found: Answers = {}

    def ask(name: str, model: str, sent: Any) -> None:
        before = cached(server, model)
        answer = infer(server, model, sent)
        if "status" in answer and model == "picky":
            answer = answer["status"]
        after = [now - then for now, then in zip(cached(server, model), before, strict=True)]
        found[f"{model}, {name}"] = [answer, after]

    ask("first", "ints", ints(1, 2))
    ask("same", "ints", ints(1, 2))
    ask("other id", "ints", ints(1, 2, id="x"))
    ask("other values", "ints", ints(1, 3))
    ask("as a stranger", "ints", ints(1, 2, parameters={"custom": 1}))
    ask("with priority", "ints", ints(1, 2, parameters={"priority": 1, "timeout": 5}))
    ask("as a sequence", "ints", ints(1, 2, parameters={"sequence_id": 1, "sequence_start": True}))
    ask("other shape", "ints", ints(1, 2, shape=[2, 1]))
    ask("wrong", "ints", ints(1, 2, shape=[1, 1, 2]))
    pair = [("INPUT0", "INT32", [1, 2], [1, 2]), ("INPUT1", "INT32", [1, 2], [3, 4])]
    ask("first", "pairs", document(pair))
    ask("other order", "pairs", document(pair[::-1]))
    ask("one output", "pairs", document(pair, outputs=[{"name": "OUTPUT1"}]))
    ask("one output again", "pairs", document(pair, outputs=[{"name": "OUTPUT1"}]))
    ask("both outputs", "pairs", document(pair, outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]))
    ask("all outputs", "pairs", document(pair))
    swapped = [("INPUT0", "INT32", [1, 2], [3, 4]), ("INPUT1", "INT32", [1, 2], [1, 2])]
    ask("swapped", "pairs", document(swapped))
    for name, values in (("first", ["a", "bc"]), ("same", ["a", "bc"]), ("other", ["ab", "c"]), ("empty", ["", ""])):
        ask(name, "texts", document([("INPUT0", "BYTES", [1, 2], values)]))
    ask("first", "batched", ints(1, 2, shape=[2, 1]))
    ask("same", "batched", ints(1, 2, shape=[2, 1]))
    ask("one item", "batched", ints(1, shape=[1, 1]))
    for name, index in (("fails", 9), ("fails again", 9), ("works", 1), ("works again", 1)):
        ask(name, "picky", document([("INDEX", "INT64", [1, 1], [index])]))
    ask("first", "uncached", ints(5))
    ask("same", "uncached", ints(5))
    return found


def ask_ensembles(server: ServerProcess) -> Answers:
    found: Answers = {}
    for model, inner in (("whole", "uncached"), ("of_cached", "ints")):
        before = cached(server, inner)
        for number in range(2):
            answer = infer(server, model, ints(7, 8, 9, name="A"))
            after = [now - then for now, then in zip(cached(server, inner), before, strict=True)]
            found[f"{model} {number}"] = [answer, cached(server, model), after]
    return found


def ask_large(server: ServerProcess) -> Answers:
    """An answer that is larger than the cache."""
    found: Answers = {}
    before = cached(server, "ints")
    for number in range(2):
        answer = infer(server, "ints", ints(*range(300_000)))
        found[str(number)] = [len(answer["OUTPUT0"][0]), answer["OUTPUT0"][1]]
    found["counts"] = [now - then for now, then in zip(cached(server, "ints"), before, strict=True)]
    return found


def ask_queue(server: ServerProcess) -> Answers:
    """A hit is answered while the model is busy."""
    with Held(server, "held") as held:
        held.release()
        held.send(ints(1, name="INPUT"))
        held.wait(0)
        held.hold()
        held.start(ints(2, name="INPUT"))
        held.send(ints(1, name="INPUT"))
        held.wait(2)
        answered = held.answered
    return {"answered": answered, "answers": held.answers, "counts": counts(server, "held")}


def ask_counts(server: ServerProcess) -> Answers:
    found: Answers = {model: counts(server, model) for model in ("texts", "whole", "of_cached")}
    for name in ("nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model", "nv_inference_request_success"):
        for model in ("texts", "whole", "of_cached", "uncached"):
            found[f"{name} {model}"] = server.metric(name, f'model="{model}"')
    return found
