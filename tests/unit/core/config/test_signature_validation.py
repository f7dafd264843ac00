"""A configuration beside the signature of its model's graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf import text_format

from tests.unit.core.config.sequence_configs import normalized
from trident.core.config.problem import BatchingFault, ModelSignature, TensorSignature
from trident.core.config.resolve import DESPITE_TRIAL
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import batching_problem, control_problems, validate_against_signature
from trident.core.inference.tensors import Shape

UNABLE = "unable to load model 'm', "


def graph(in_shape: Shape = (-1, 16), out_shape: Shape = (-1, 16), datatype: str = "INT32") -> ModelSignature:
    return ModelSignature(
        (TensorSignature("IN", datatype, in_shape),),
        (TensorSignature("OUT", datatype, out_shape),),
        (TensorSignature("INIT", datatype, (4,)),),
    )


def messages(text: str, signature: ModelSignature) -> list[str]:
    config = text_format.Parse(text, ModelConfig(name="m"))
    return [problem.message for problem in validate_against_signature(config, signature, "m")]


def config_text(in_dims: str = "16", out_dims: str = "16", batch: int = 8, more: str = "") -> str:
    return (
        f'max_batch_size: {batch} input {{ name: "IN" data_type: TYPE_INT32 dims: [ {in_dims} ] {more} }} '
        f'output {{ name: "OUT" data_type: TYPE_INT32 dims: [ {out_dims} ] }} '
    )


@pytest.mark.parametrize("shape", [(-1,), (-1, 3, -1), (2, 3), (), (-1, 0)])
@pytest.mark.parametrize("batch", [0, 8])
@pytest.mark.parametrize("more", ["", "reshape { shape: [ 1, 5 ] }"])
def test_following_a_hint_fixes_the_problem(shape: Shape, batch: int, more: str) -> None:
    of_model = graph(shape, shape)
    config = text_format.Parse(config_text("5, 1", "5, 1", batch, more), ModelConfig(name="m"))
    found = validate_against_signature(config, of_model, "m")
    for problem in found:
        assert problem.path in ("input[0].dims", "output[0].dims")
        hint = problem.hint.partition(", or export")[0].removesuffix(" and no reshape")
        batch = 0 if "set max_batch_size to 0 and " in hint else batch
        written = hint[hint.index("dims: ") :]
        tensors = f'{{ name: "%s" data_type: TYPE_INT32 {written} }}'
        text = f"max_batch_size: {batch} input {tensors % 'IN'} output {tensors % 'OUT'}"
        assert messages(text, of_model) == []
    assert found


_IN, _OUT = TensorSignature("IN", "INT32", (-1, 4)), TensorSignature("OUT", "INT32", (-1, 4))
STATEFUL = ModelSignature(
    (_IN, TensorSignature("S", "FP32", (-1, 2)), TensorSignature("C", "INT32", (-1, 1))),
    (_OUT, TensorSignature("T", "FP32", (-1, 2))),
)
SEQUENCE = """sequence_batching {
  control_input { name: "C" control { int32_false_true: [ 0, 1 ] } }
  state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 2 ] } }"""


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ("", "", []),
        ('"S"', '"R"', ["sequence_batching.state[0].name"]),
        ('"T"', '"R"', ["sequence_batching.state[0]"]),
        ("dims: [ 2 ]", "dims: [ 3 ]", ["sequence_batching.state[0].dims"] * 2),
        ("dims: [ 2 ]", "dims: [ -1 ]", ["sequence_batching.state[0].dims"]),
        ("TYPE_FP32", "TYPE_FP16", ["sequence_batching.state[0].data_type"] * 2),
    ],
)
def test_a_state_is_an_input_and_an_output_of_the_graph(old: str, new: str, paths: list[str]) -> None:
    text = config_text("4", "4") + SEQUENCE.replace(old, new)
    found = validate_against_signature(text_format.Parse(text, ModelConfig(name="m")), STATEFUL, "m")
    assert [problem.path for problem in found] == paths


@pytest.mark.parametrize(
    ("in_dims", "out_dims", "batch", "wrong"),
    [
        ("4", "4", 8, ""),
        ("-1", "4", 8, "input"),  # an input may be narrower than the graph's, an output wider
        ("4", "-1", 8, ""),
        ("4, 1", "4", 8, "input"),
        ("-1, 4", "-1, 4", 0, ""),
        ("2, 4", "-1, 4", 0, ""),
        ("-1, 4", "2, 4", 0, "output"),
        ("4", "-1, 4", 0, "input"),
    ],
)
def test_dims_fit_the_graph(in_dims: str, out_dims: str, batch: int, wrong: str) -> None:
    config = text_format.Parse(config_text(in_dims, out_dims, batch), ModelConfig(name="m"))
    found = validate_against_signature(config, graph((-1, 4), (-1, 4)), "m")
    assert [problem.path for problem in found] == [f"{wrong}[0].dims"] * bool(wrong)


def test_unknown_names_list_the_allowed_ones() -> None:
    assert messages(config_text().replace('"IN"', '"WRONG"'), graph()) == [
        "unexpected inference input 'WRONG', allowed inputs are: IN"
    ]
    assert messages(config_text().replace("OUT", "WRONG"), graph()) == [
        "unexpected inference output 'WRONG', allowed outputs are: OUT"
    ]
    text = config_text() + 'batch_input { target_name: [ "A", "B" ] data_type: TYPE_INT32 } '
    assert messages(text, graph()) == [
        f"{UNABLE}configuration expects 3 inputs, model provides 1",
        "unexpected inference input 'A', allowed inputs are: IN",
        "unexpected inference input 'B', allowed inputs are: IN",
    ]


@pytest.mark.parametrize(
    ("batch_input", "shape", "expected"),
    [
        ("data_type: TYPE_INT32", (-1,), []),
        ("kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32", (-1, 2), []),
        (
            "data_type: TYPE_FP32",
            (-1,),
            ["configuration expects datatype TYPE_FP32 for batch input 'COUNT', model provides TYPE_INT32"],
        ),
        (
            "data_type: TYPE_INT32",
            (-1, 2),
            ["batch input 'COUNT' of kind 'BATCH_ELEMENT_COUNT' has 1 dimension, model provides [-1,2]"],
        ),
        (
            "kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32",
            (-1,),
            ["batch input 'COUNT' of kind 'BATCH_ITEM_SHAPE' has 2 dimensions, model provides [-1]"],
        ),
    ],
)
def test_batch_input_must_fit_the_graph(batch_input: str, shape: Shape, expected: list[str]) -> None:
    plain = graph()
    signature = replace(plain, inputs=(*plain.inputs, TensorSignature("COUNT", "INT32", shape)))
    text = config_text() + f'batch_input {{ target_name: "COUNT" {batch_input} }} '
    assert messages(text, signature) == [f"{UNABLE}{message}" for message in expected]


def test_optional_input_must_be_an_initializer_of_a_model_without_batching() -> None:
    optional = 'input { name: "INIT" data_type: TYPE_INT32 dims: [ 4 ] optional: true } '
    plain = config_text("-1, 16", "-1, 16", batch=0)
    assert messages(plain + optional, graph()) == []
    assert messages(plain + optional.replace('"INIT"', '"IN"'), graph())[-1] == (
        "unexpected inference input 'IN', allowed inputs are: INIT"
    )
    assert messages(config_text() + optional, graph())[0] == (
        f"{UNABLE}optional input 'INIT' is not supported for models that support batching"
    )
    assert messages(plain + optional.replace("optional", "allow_ragged_batch: true optional"), graph()) == [
        f"{UNABLE}configuration expects model provides input with shape [-1] for ragged input 'INIT', which is not "
        "supported for optional input"
    ]


def test_ragged_input_must_be_flat() -> None:
    ragged = config_text("-1", more="allow_ragged_batch: true")
    assert messages(ragged, graph((-1,))) == []
    assert messages(ragged, graph((-1, 16))) == [
        f"{UNABLE}configuration expects model provides input with shape [-1]  for ragged input 'IN', model provides "
        "[-1,16]"
    ]


START = 'control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (TensorSignature("S", "INT32", (-1, 1)), None),
        (TensorSignature("S", "INT32", (-1, -1)), None),
        (
            TensorSignature("X", "INT32", (-1, 1)),
            "configuration specified sequence control 'S', but model does not provide that input",
        ),
        (
            TensorSignature("S", "INT32", (-1, 2)),
            "unable to load model 'm', sequence control 'S' in model has dims [2] but dims [1] is expected",
        ),
        (
            TensorSignature("S", "FP32", (-1, 1)),
            "unable to load model 'm', sequence control 'S', the model expects data-type FLOAT but the model "
            "configuration specifies data-type TYPE_INT32",
        ),
    ],
)
def test_a_control_must_be_an_input_of_the_graph(tensor: TensorSignature, problem: str | None) -> None:
    signature = ModelSignature(inputs=(tensor,), outputs=(), optional_inputs=())
    found = [each.message for each in control_problems(normalized(START), signature, "m")]
    assert found == ([] if problem is None else [problem])


@pytest.mark.parametrize(("most", "shape"), [(1, (-1, 1)), (0, (1,))])
def test_a_control_has_the_batch_dimension_of_a_model_that_batches(most: int, shape: tuple[int, ...]) -> None:
    config = normalized(START)
    config.max_batch_size = most
    signature = ModelSignature(inputs=(TensorSignature("S", "INT32", shape),), outputs=())
    assert list(control_problems(config, signature, "m")) == []


@pytest.mark.parametrize(
    ("despite", "what", "cure"),
    [
        ("false", "so each request is executed alone, and no batch is padded", "; the parameter {}, set to true, "),
        ("true", "requests that are batched fail, or get wrong answers, as {} wants", ""),
    ],
)
def test_graph_with_dependent_rows_is_reported(despite: str, what: str, cure: str) -> None:
    parameter = f'parameters {{ key: "{DESPITE_TRIAL}" value {{ string_value: "{despite}" }} }}'
    config = text_format.Parse(config_text(batch=1) + parameter, ModelConfig(name="m"))
    fault = BatchingFault("its rows are summed", "sum the others")
    signature = ModelSignature(inputs=(), outputs=(), batching_fault=fault)
    problem = batching_problem(config, signature)
    assert problem is not None
    assert problem.message == (
        "a trial has shown that the graph does not keep the requests of a batch apart: its rows are summed; "
        + what.format(DESPITE_TRIAL)
    )
    assert problem.hint.startswith("set max_batch_size to 0 and let the dims begin with the first dimension, or sum")
    assert cure.format(DESPITE_TRIAL) in problem.hint
    config.max_batch_size = 0
    assert batching_problem(config, signature) is None
