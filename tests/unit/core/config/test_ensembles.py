"""Ensembles: the graph of their steps, how the models fit together, and all ensembles of a repository."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf import text_format

from trident.core.config.ensemble import EnsembleStep, KnownModels, compose
from trident.core.config.problem import Problem
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.inference.tensors import BY_NAME, Shape

Tensor = tuple[str, str, Shape]


def model(name: str, inputs: list[Tensor], outputs: list[Tensor], batch: int = 0, decoupled: bool = False) -> ModelSpec:
    return ModelSpec(
        name=name,
        version=1,
        platform="",
        backend="",
        max_batch_size=batch,
        inputs={n: InputSpec(name=n, datatype=BY_NAME[t], dims=dims) for n, t, dims in inputs},
        outputs={n: OutputSpec(name=n, datatype=BY_NAME[t], dims=dims) for n, t, dims in outputs},
        decoupled=decoupled,
    )


def composed_step(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> EnsembleStep:
    return EnsembleStep(model=name, version=-1, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()))


def problems(ensemble: ModelSpec, *pairs: tuple[EnsembleStep, ModelSpec]) -> list[str]:
    found = compose(ensemble, [each for each, _ in pairs], [spec for _, spec in pairs])
    return [problem.message for problem in found.problems]


FP = [("X", "FP32", (4,))]
E = model("e", [("IN", "FP32", (4,))], [("OUT", "FP32", (4,))])
A = model("a", FP, [("Y", "FP32", (4,))])
B = model("b", FP, [("Y", "FP32", (4,))])
FIRST = composed_step("a", {"X": "IN"}, {"Y": "T"})
SECOND = composed_step("b", {"X": "T"}, {"Y": "OUT"})


def test_all_wrong_names_are_reported_at_once() -> None:
    wrong = composed_step("a", {"Z": "IN"}, {"W": "T"})
    assert problems(E, (wrong, A), (SECOND, B)) == [
        "in ensemble e, ensemble tensor IN is mapping to non-existing input Z in model a",
        "in ensemble e, input X in model a is not mapped to any ensemble tensors",
        "in ensemble e, ensemble tensor T is mapped from non-existing output W in model a",
    ]


def test_datatype_and_shape_must_be_those_of_the_first_model() -> None:
    other = model("b", [("X", "INT32", (4,))], [("Y", "FP32", (2, 2))])
    assert problems(E, (FIRST, A), (SECOND, other)) == [
        "in ensemble e, ensemble tensor T: inconsistent data type: TYPE_FP32 is inferred from model a while TYPE_INT32 "
        "is inferred from model b",
        "in ensemble e, ensemble tensor OUT: inconsistent shape: [4] is inferred from model e while [2,2] is inferred "
        "from model b",
    ]


MIXED = "in ensemble e, step of model 'c' receives inputs originated from different decoupled models"


def test_ensemble_with_a_decoupled_step_cannot_be_cached() -> None:
    cached = replace(E, response_cache=True)
    assert problems(cached, (FIRST, A), (SECOND, B)) == []
    (problem,) = compose(cached, [FIRST, SECOND], [A, replace(B, decoupled=True)]).problems
    assert problem == Problem(
        "response_cache",
        "Response Cache does not currently support model e with 'decoupled' transaction policy. Please disable the "
        "response cache.",
        "the model 'b' of one of its steps is decoupled",
    )


def test_responses_of_different_decoupled_models_cannot_be_joined() -> None:
    c = model("c", [("X", "FP32", (4,)), ("Z", "FP32", (4,))], [("Y", "FP32", (4,))])
    decoupled = replace(A, decoupled=True), replace(B, decoupled=True)
    left, right = composed_step("a", {"X": "IN"}, {"Y": "T"}), composed_step("b", {"X": "IN"}, {"Y": "U"})
    join = composed_step("c", {"X": "T", "Z": "U"}, {"Y": "OUT"})
    assert problems(E, (left, decoupled[0]), (right, decoupled[1]), (join, c)) == [MIXED]
    with_input = composed_step("c", {"X": "T", "Z": "IN"}, {"Y": "OUT"})
    assert problems(E, (left, decoupled[0]), (with_input, c)) == [MIXED]
    branches = composed_step("b", {"X": "T"}, {"Y": "U"})
    assert problems(E, (left, decoupled[0]), (branches, B), (join, c)) == []


TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'


def note_model(known: KnownModels, name: str, more: str = "", *, version: int = 1, valid: bool = True) -> None:
    known.note_name(name)
    if valid:
        config = text_format.Parse(f"{TENSORS} {more}", ModelConfig(name=name))
        known.note(config, resolve_model_spec(config, version, {}))


def chain(*models: str, version: int = -1) -> str:
    """Steps one after the other."""
    ends = ["X", *(f"T{n}" for n in range(1, len(models))), "Y"]
    steps = [
        f'step {{ model_name: "{name}" model_version: {version} input_map {{ key: "X" value: "{ends[n]}" }} '
        f'output_map {{ key: "Y" value: "{ends[n + 1]}" }} }}'
        for n, name in enumerate(models)
    ]
    return f"ensemble_scheduling {{ {' '.join(steps)} }}"


def messages(known: KnownModels) -> dict[str, list[str]]:
    return {name: [problem.message for problem in problems] for name, problems in known.problems().items()}


def test_steps_without_a_model_are_named() -> None:
    known = KnownModels()
    note_model(known, "e", chain("a", "b", "c", version=2))
    note_model(known, "a", version=1)
    note_model(known, "b", valid=False)
    assert messages(known) == {
        "e": [
            "ensemble 'e' depends on 'a' whose required version 2 is not loaded.",
            "ensemble 'e' depends on 'b' which is not valid.",
            "ensemble e contains models that are not available or ambiguous: c",
        ]
    }


def test_circular_ensembles_are_refused() -> None:
    known = KnownModels()
    note_model(known, "e", chain("f"))
    note_model(known, "f", chain("e"))
    note_model(known, "itself", chain("itself"))
    note_model(known, "outside", chain("e"))
    text = "circular dependency between ensembles: "
    assert messages(known) == {
        "e": [f"{text}e -> f -> e"],
        "f": [f"{text}f -> e -> f"],
        "itself": [f"{text}itself -> itself"],
    }


def test_an_inner_ensemble_is_decoupled_with_its_steps() -> None:
    known = KnownModels()
    decoupled = "model_transaction_policy { decoupled: true }"
    note_model(known, "stream", decoupled)
    note_model(known, "inner", chain("stream"))
    join = (
        'ensemble_scheduling { step { model_name: "inner" model_version: -1 input_map { key: "X" value: "X" } '
        'output_map { key: "Y" value: "T" } } step { model_name: "two" model_version: -1 '
        'input_map { key: "X" value: "T" } input_map { key: "Z" value: "X" } output_map { key: "Y" value: "Y" } } }'
    )
    note_model(known, "e", join)
    note_model(known, "two", 'input { name: "Z" data_type: TYPE_FP32 dims: 4 }')
    assert messages(known) == {
        "e": ["in ensemble e, step of model 'two' receives inputs originated from different decoupled models"]
    }
