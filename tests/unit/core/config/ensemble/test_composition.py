"""Whether the models of the steps fit together: a table of Triton's texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trident.core.config.ensemble import EnsembleStep
from trident.core.config.ensemble_check import compose, may_match
from trident.core.config.problem import Problem
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


def step(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> EnsembleStep:
    return EnsembleStep(model=name, version=-1, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()))


def problems(ensemble: ModelSpec, *pairs: tuple[EnsembleStep, ModelSpec]) -> list[str]:
    found = compose(ensemble, [each for each, _ in pairs], [spec for _, spec in pairs])
    return [problem.message for problem in found.problems]


FP = [("X", "FP32", (4,))]
E = model("e", [("IN", "FP32", (4,))], [("OUT", "FP32", (4,))])
A = model("a", FP, [("Y", "FP32", (4,))])
B = model("b", FP, [("Y", "FP32", (4,))])
FIRST = step("a", {"X": "IN"}, {"Y": "T"})
SECOND = step("b", {"X": "T"}, {"Y": "OUT"})


def test_models_that_fit_have_no_problems() -> None:
    assert problems(E, (FIRST, A), (SECOND, B)) == []
    batching = replace(E, max_batch_size=8)
    assert problems(batching, (FIRST, replace(A, max_batch_size=8)), (SECOND, replace(B, max_batch_size=9))) == []


def test_the_batch_dimension_may_be_an_ordinary_one() -> None:
    whole = model("b", [("X", "FP32", (-1, 4))], [("Y", "FP32", (-1, 4))])
    batching = replace(E, max_batch_size=8)
    assert problems(batching, (FIRST, replace(A, max_batch_size=8)), (SECOND, whole)) == []
    assert problems(batching, (FIRST, replace(A, max_batch_size=8)), (SECOND, B)) == []


def test_a_model_with_smaller_batches_does_not_fit() -> None:
    text = (
        "ensemble e allows maximum batch size 8, but it contains model a which only allows maximum batch size to be 4"
    )
    assert problems(replace(E, max_batch_size=8), (FIRST, replace(A, max_batch_size=4)), (SECOND, B)) == [text]


def test_all_wrong_names_are_reported_at_once() -> None:
    wrong = step("a", {"Z": "IN"}, {"W": "T"})
    assert problems(E, (wrong, A), (SECOND, B)) == [
        "in ensemble e, ensemble tensor IN is mapping to non-existing input Z in model a",
        "in ensemble e, input X in model a is not mapped to any ensemble tensors",
        "in ensemble e, ensemble tensor T is mapped from non-existing output W in model a",
    ]


def test_an_optional_input_need_not_be_mapped() -> None:
    optional = InputSpec(name="Z", datatype=BY_NAME["FP32"], dims=(1,), optional=True)
    more = replace(A, inputs={**A.inputs, "Z": optional})
    assert problems(E, (FIRST, more), (SECOND, B)) == []


def test_datatype_and_shape_must_be_those_of_the_first_model() -> None:
    other = model("b", [("X", "INT32", (4,))], [("Y", "FP32", (2, 2))])
    assert problems(E, (FIRST, A), (SECOND, other)) == [
        "in ensemble e, ensemble tensor T: inconsistent data type: TYPE_FP32 is inferred from model a while TYPE_INT32 "
        "is inferred from model b",
        "in ensemble e, ensemble tensor OUT: inconsistent shape: [4] is inferred from model e while [2,2] is inferred "
        "from model b",
    ]


def test_shapes_are_shown_with_the_batch_dimension() -> None:
    batching = replace(E, max_batch_size=8)
    wide = model("a", [("X", "FP32", (5,))], [("Y", "FP32", (4,))], batch=8)
    assert problems(batching, (FIRST, wide), (SECOND, replace(B, max_batch_size=8))) == [
        "in ensemble e, ensemble tensor IN: inconsistent shape: [-1,4] is inferred from model e while [-1,5] is "
        "inferred from model a"
    ]


@pytest.mark.parametrize(
    ("dims", "others", "expected"),
    [((4,), (4,), True), ((4,), (-1,), True), ((-1, 2), (3, -1), True), ((4,), (5,), False), ((4,), (4, 4), False)],
)
def test_dimensions_match_with_any_size_for_minus_one(dims: Shape, others: Shape, expected: bool) -> None:
    assert may_match(dims, others) is expected
    assert may_match(others, dims) is expected


MIXED = "in ensemble e, step of model 'c' receives inputs originated from different decoupled models"


def test_an_ensemble_with_a_decoupled_step_is_decoupled() -> None:
    steps = [FIRST, SECOND]
    assert not compose(E, steps, [A, B]).is_decoupled
    for models in ([replace(A, decoupled=True), B], [A, replace(B, decoupled=True)]):
        found = compose(E, steps, models)
        assert found.is_decoupled
        assert found.problems == ()


def test_answers_of_an_ensemble_with_a_decoupled_step_are_not_kept() -> None:
    cached = replace(E, response_cache=True)
    assert problems(cached, (FIRST, A), (SECOND, B)) == []
    (problem,) = compose(cached, [FIRST, SECOND], [A, replace(B, decoupled=True)]).problems
    assert problem == Problem(
        "response_cache",
        "Response Cache does not currently support model e with 'decoupled' transaction policy. Please disable the "
        "response cache.",
        "the model 'b' of one of its steps is decoupled",
    )


def test_responses_of_different_decoupled_models_do_not_meet() -> None:
    c = model("c", [("X", "FP32", (4,)), ("Z", "FP32", (4,))], [("Y", "FP32", (4,))])
    decoupled = replace(A, decoupled=True), replace(B, decoupled=True)
    left, right = step("a", {"X": "IN"}, {"Y": "T"}), step("b", {"X": "IN"}, {"Y": "U"})
    join = step("c", {"X": "T", "Z": "U"}, {"Y": "OUT"})
    assert problems(E, (left, decoupled[0]), (right, decoupled[1]), (join, c)) == [MIXED]
    with_input = step("c", {"X": "T", "Z": "IN"}, {"Y": "OUT"})
    assert problems(E, (left, decoupled[0]), (with_input, c)) == [MIXED]
    branches = step("b", {"X": "T"}, {"Y": "U"})
    assert problems(E, (left, decoupled[0]), (branches, B), (join, c)) == []
