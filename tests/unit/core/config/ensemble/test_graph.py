"""The steps that a tensor makes ready, and the steps that an output needs."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.ensemble import EnsembleStep, ensemble_steps, first_unconnected, needed_steps, reachable
from trident.core.config.schema import ModelConfig


def step(sources: str, results: str) -> EnsembleStep:
    """A step that reads and writes these tensors; one letter is a tensor."""
    return EnsembleStep(
        model="m",
        version=-1,
        inputs=tuple((f"in_{name}", name) for name in sources),
        outputs=tuple((f"out_{name}", name) for name in results),
    )


def steps(text: str) -> list[EnsembleStep]:
    """`ab>c c>d` are two steps."""
    return [step(*each.split(">")) for each in text.split()]


def test_steps_are_read_from_the_configuration() -> None:
    config = text_format.Parse(
        """ensemble_scheduling { step {
        model_name: "m" model_version: 3 model_namespace: "n"
        input_map { key: "B" value: "x" } input_map { key: "A" value: "x" } output_map { key: "C" value: "y" }
        } step { model_name: "other" } }""",
        ModelConfig(),
    )
    first, second = ensemble_steps(config)
    assert first == EnsembleStep(
        model="m", version=3, inputs=(("A", "x"), ("B", "x")), outputs=(("C", "y"),), namespace="n"
    )
    assert second.version == 0, "the number that protobuf gives a field that is not written"
    assert ensemble_steps(ModelConfig()) == ()


@pytest.mark.parametrize(
    ("text", "inputs", "expected"),
    [
        ("a>b b>c", "a", "abc"),
        ("b>c a>b", "a", "abc"),
        ("ab>c", "a", "a"),
        ("a>b c>d d>c", "a", "ab"),
        ("a>bc b>d c>e de>f", "a", "abcdef"),
    ],
)
def test_tensors_that_will_be_there(text: str, inputs: str, expected: str) -> None:
    assert reachable(steps(text), inputs) == set(expected)


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [("x>b b>c", "c", "x"), ("ax>b", "b", "x"), ("c>b b>c", "c", ""), ("a>b", "z", "z")],
)
def test_the_tensor_that_nothing_writes(text: str, output: str, expected: str) -> None:
    assert first_unconnected(steps(text), output, {"a"}) == expected


@pytest.mark.parametrize(
    ("text", "outputs", "expected"),
    [
        ("a>b a>c", "b", (0,)),
        ("a>b a>c", "bc", (0, 1)),
        ("b>c a>b x>y", "c", (0, 1)),
        ("a>bc b>d c>e", "e", (0, 2)),
        ("a>b", "a", ()),
    ],
)
def test_steps_that_outputs_need(text: str, outputs: str, expected: tuple[int, ...]) -> None:
    assert needed_steps(steps(text), outputs) == expected
