"""The problems of ensembles with the models of their steps, before anything is loaded."""

from __future__ import annotations

from google.protobuf import text_format

from trident.core.config.ensemble_check import KnownModels
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'


def model(known: KnownModels, name: str, more: str = "", *, version: int = 1, valid: bool = True) -> None:
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


def test_ensembles_that_fit_have_no_problems() -> None:
    known = KnownModels()
    model(known, "e", chain("a", "inner"))  # before its steps
    model(known, "a")
    model(known, "inner", chain("a", "a"))
    assert known.problems() == {}


def test_steps_without_a_model_are_named() -> None:
    known = KnownModels()
    model(known, "e", chain("a", "b", "c", version=2))
    model(known, "a", version=1)
    model(known, "b", valid=False)
    assert messages(known) == {
        "e": [
            "ensemble 'e' depends on 'a' whose required version 2 is not loaded.",
            "ensemble 'e' depends on 'b' which is not valid.",
            "ensemble e contains models that are not available or ambiguous: c",
        ]
    }


def test_circles_are_found() -> None:
    known = KnownModels()
    model(known, "e", chain("f"))
    model(known, "f", chain("e"))
    model(known, "itself", chain("itself"))
    model(known, "outside", chain("e"))
    text = "circular dependency between ensembles: "
    assert messages(known) == {
        "e": [f"{text}e -> f -> e"],
        "f": [f"{text}f -> e -> f"],
        "itself": [f"{text}itself -> itself"],
    }


def test_the_models_must_fit() -> None:
    known = KnownModels()
    model(known, "e", f"max_batch_size: 8 {chain('a')}")
    model(known, "a", "max_batch_size: 4")
    ((message,),) = messages(known).values()
    assert message.startswith("ensemble e allows maximum batch size 8, but it contains model a which only allows")


def test_an_inner_ensemble_is_decoupled_with_its_steps() -> None:
    known = KnownModels()
    decoupled = "model_transaction_policy { decoupled: true }"
    model(known, "stream", decoupled)
    model(known, "inner", chain("stream"))
    join = (
        'ensemble_scheduling { step { model_name: "inner" model_version: -1 input_map { key: "X" value: "X" } '
        'output_map { key: "Y" value: "T" } } step { model_name: "two" model_version: -1 '
        'input_map { key: "X" value: "T" } input_map { key: "Z" value: "X" } output_map { key: "Y" value: "Y" } } }'
    )
    model(known, "e", join)
    model(known, "two", 'input { name: "Z" data_type: TYPE_FP32 dims: 4 }')
    assert messages(known) == {
        "e": ["in ensemble e, step of model 'two' receives inputs originated from different decoupled models"]
    }
