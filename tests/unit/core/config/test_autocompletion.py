"""Autocompletion: defaults, platforms, instance groups and devices, and the tensors of the graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf import text_format

from trident.core.config.autocomplete import (
    CpuInstead,
    GpuIds,
    auto_complete,
    fill_identity,
    groups_on_cpu_instead,
    instance_group_problems,
    is_complete,
    needs_signature,
    normalize,
    normalize_instance_groups,
)
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.config.platforms import fill_platform, pads_batches
from trident.core.config.problem import BatchingFault, ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid


def normalized(text: str, gpu_ids: tuple[int, ...] = ()) -> ModelConfig:
    config = text_format.Parse(text, ModelConfig())
    fill_identity(config, "m", ["model.onnx"])
    normalize(config, gpu_ids)
    return config


LATEST = "version_policy { latest { num_versions: 1 } }"


def test_defaults_are_filled_once() -> None:
    config = normalized('name: "other" max_batch_size: 8 sequence_batching { oldest {} }')
    assert (config.name, config.backend, config.version_policy.latest.num_versions) == ("other", "onnxruntime", 1)
    before = config.SerializeToString()
    normalize(config, ())
    assert config.SerializeToString() == before


def test_an_ensemble_gets_neither_instances_nor_optimizations() -> None:
    wanted = text_format.Parse(f'name: "m" platform: "ensemble" {LATEST}', ModelConfig())
    config = normalized('platform: "ensemble"')
    assert config == wanted
    assert instance_group_problems(config, "m", ()) == []
    (problem,) = instance_group_problems(ModelConfig(), "m", ())
    assert (problem.path, problem.message) == ("instance_group", "must specify one or more 'instance group's for m")


@pytest.mark.parametrize(
    ("given", "files", "filled"),
    [
        ({"backend": "onnxruntime"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({"platform": "onnxruntime_onnx"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({"default_model_filename": "model.onnx"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({}, ["model.onnx"], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({}, ["model.plan", "other"], ("tensorrt_plan", "tensorrt", "model.plan")),
        ({}, ["model.py"], ("", "python", "model.py")),
        ({"backend": "python"}, ["model.onnx"], ("", "python", "model.py")),
        ({"backend": "pytorch"}, ["model.pt2"], ("torch_aoti", "pytorch", "model.pt2")),
        ({"backend": "pytorch"}, [], ("pytorch_libtorch", "pytorch", "model.pt")),
        ({"backend": "tensorflow"}, [], ("", "tensorflow", "")),
        (
            {"backend": "onnxruntime", "default_model_filename": "best.onnx"},
            ["model.py"],
            ("onnxruntime_onnx", "onnxruntime", "best.onnx"),
        ),
        ({"backend": "mine"}, [], ("", "mine", "model.mine")),
        ({"name": "x.mine"}, [], ("", "mine", "model.mine")),
        ({"name": "x.y.mine"}, [], ("", "y.mine", "model.y.mine")),
        ({"name": "x.mine", "default_model_filename": "f"}, [], ("", "", "f")),
        ({"platform": "ensemble"}, ["model.onnx"], ("ensemble", "", "")),
        ({"name": "plain"}, ["weights.bin"], ("", "", "")),
    ],
)
def test_missing_fields_are_filled_from_the_others(
    given: dict[str, str], files: list[str], filled: tuple[str, str, str]
) -> None:
    config = ModelConfig(**given)
    fill_platform(config, files)
    assert (config.platform, config.backend, config.default_model_filename) == filled


@pytest.mark.parametrize(
    ("given", "pads"),
    [
        ({"platform": "onnxruntime_onnx"}, True),
        ({"backend": "openvino"}, True),
        ({"platform": "tensorrt_plan"}, True),
        ({"backend": "pytorch"}, True),
        ({"backend": "pytorch", "runtime": "model.py"}, False),
        ({"platform": "torch_aoti"}, False),
        ({"backend": "python"}, False),
        ({"backend": "mine"}, False),
    ],
)
def test_batches_are_padded_where_the_server_gathers_them(given: dict[str, str], pads: bool) -> None:
    config = ModelConfig(**given)
    fill_platform(config, [])
    assert pads_batches(config) is pads


Group = tuple[str, int, int, list[int]]
AUTO, GPU, CPU, MODEL = range(4)


def config_of(text: str, backend: str = "onnxruntime") -> ModelConfig:
    return text_format.Parse(text, ModelConfig(name="m", backend=backend))


def with_groups(text: str, gpu_ids: GpuIds, backend: str = "onnxruntime") -> list[Group]:
    config = config_of(text, backend)
    normalize_instance_groups(config, gpu_ids)
    once = config.SerializeToString()
    normalize_instance_groups(config, gpu_ids)
    assert config.SerializeToString() == once
    return [(group.name, group.kind, group.count, list(group.gpus)) for group in config.instance_group]


def problems(text: str, gpu_ids: GpuIds) -> list[str]:
    config = config_of(text)
    normalize_instance_groups(config, gpu_ids)
    return [problem.message for problem in instance_group_problems(config, "m", gpu_ids)]


def test_gpu_groups_take_all_gpus_unless_they_list_some() -> None:
    assert with_groups("", []) == [("m", CPU, 2, [])]
    assert with_groups("", None) == [("m", CPU, 2, [])]
    assert with_groups("", [0]) == [("m", GPU, 1, [0])]
    assert with_groups("instance_group { count: 1 kind: KIND_CPU }", []) == [("m_0", CPU, 1, [])]
    assert with_groups("", [], backend="python") == [("m", CPU, 1, [])]
    text = "instance_group [ { kind: KIND_GPU }, { kind: KIND_GPU gpus: [ 1 ] count: 2 }, { gpus: [ 0 ] } ]"
    assert with_groups(text, [0, 1]) == [("m_0", GPU, 1, [0, 1]), ("m_1", GPU, 2, [1]), ("m_2", GPU, 1, [0])]


def test_a_missing_gpu_is_refused_or_replaced_by_the_cpu() -> None:
    text = "instance_group [ { kind: KIND_GPU }, { gpus: [ 0 ] count: 3 }, { kind: KIND_MODEL } ]"
    assert with_groups(text, CpuInstead()) == [("m_0", CPU, 2, []), ("m_1", CPU, 3, []), ("m_2", MODEL, 1, [])]
    assert problems(text, CpuInstead()) == []
    assert len(problems("instance_group { kind: KIND_CPU gpus: [ 0 ] }", CpuInstead())) == 1
    assert problems("instance_group { kind: KIND_GPU gpus: [ 0 ] }", None) == [
        "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"
    ]
    assert problems("instance_group { kind: KIND_CPU }", None) == []
    # What a server without --gpu-missing=cpu makes of a group that lists GPUs which are not there.
    assert with_groups("instance_group { gpus: [ 3 ] }", [0]) == [("m_0", CPU, 2, [3])]


@pytest.mark.parametrize(
    ("text", "gpu_ids", "moved"),
    [
        (
            "instance_group [ { kind: KIND_GPU }, { gpus: [ 0 ] }, { kind: KIND_CPU }, {} ]",
            CpuInstead(),
            ["m_0", "m_1"],
        ),
        ("instance_group [ { kind: KIND_GPU }, { gpus: [ 0 ] }, { kind: KIND_CPU }, {} ]", (0,), []),
        ("instance_group { gpus: [ 3 ] }", (0,), []),
    ],
)
def test_groups_moved_to_the_cpu_are_reported(text: str, gpu_ids: GpuIds, moved: list[str]) -> None:
    config = config_of(text)
    normalize_instance_groups(config, gpu_ids)
    assert groups_on_cpu_instead(config_of(text), config) == moved


CURES = "start the server with --gpu-missing=cpu, or use KIND_CPU; to run it on a GPU,"


@pytest.mark.parametrize(
    ("text", "gpu_ids", "path", "hint"),
    [
        ("{ kind: KIND_GPU }", None, "kind", f"to run it on the CPU, {CURES} install the extra 'gpu' and start"),
        ("{ kind: KIND_GPU }", (), "kind", f"to run it on the CPU, {CURES} start the server where it sees one"),
        ("{ kind: KIND_GPU gpus: [ 0, 7 ] }", (0, 1), "gpus", ""),
        ("{ kind: KIND_CPU gpus: [ 0 ] }", (0,), "gpus", "remove 'gpus'"),
        ('{ kind: KIND_CPU profile: [ "0" ] }', (), "profile", ""),
    ],
)
def test_a_problem_of_a_group_has_its_field_and_its_cure(text: str, gpu_ids: GpuIds, path: str, hint: str) -> None:
    config = config_of(f"instance_group [ {{ kind: KIND_CPU }}, {text} ]")
    normalize_instance_groups(config, gpu_ids)
    (problem,) = instance_group_problems(config, "m", gpu_ids)
    assert problem.path == f"instance_group[1].{path}"
    assert problem.hint.startswith(hint)
    assert bool(problem.hint) == bool(hint)


def test_invalid_groups_are_problems() -> None:
    prefix = "instance group m_0 of model m "
    assert problems("instance_group { kind: KIND_GPU }", []) == [f"{prefix}has kind KIND_GPU but no GPUs are available"]
    assert problems("instance_group { kind: KIND_MODEL gpus: [ 0 ] }", [0]) == [
        f"{prefix}has kind KIND_MODEL but specifies one or more GPUs"
    ]
    assert problems("instance_group { kind: KIND_GPU gpus: [ 7 ] }", [0, 1]) == [
        f"{prefix}specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute "
        "compatibility of 6.000000 are: 0, 1"
    ]
    unfilled = text_format.Parse('instance_group { name: "m_0" kind: KIND_GPU count: 1 }', ModelConfig())
    assert [each.message for each in instance_group_problems(unfilled, "m", [0])] == [
        f"{prefix}has kind KIND_GPU but specifies no GPUs"
    ]
    assert problems('platform: "tensorrt_plan" instance_group { profile: [ "0" ] }', []) == []
    assert problems("instance_group [ { passive: true }, {} ]", []) == []
    assert problems('platform: "onnxruntime_onnx" instance_group { profile: [ "0" ] }', []) == [
        f"{prefix}and platform onnxruntime_onnxspecifies profile field which is only supported for TensorRT models"
    ]
    assert problems("instance_group { passive: true }", []) == [
        "every instance group of model m is passive, so no instance would execute requests"
    ]


def test_each_count_and_gpu_gives_an_instance() -> None:
    config = text_format.Parse(
        'instance_group [ { name: "a" kind: KIND_CPU count: 2 }, { name: "b" kind: KIND_GPU count: 2 gpus: [ 0, 1 ] },'
        ' { name: "c" kind: KIND_MODEL count: 1 }, { name: "d" kind: KIND_CPU count: 5 passive: true } ]',
        ModelConfig(),
    )
    assert placements(config) == (
        Placement("a_0", DeviceKind.CPU),
        Placement("a_1", DeviceKind.CPU),
        Placement("b_0", DeviceKind.GPU, 0),
        Placement("b_0", DeviceKind.GPU, 1),
        Placement("b_1", DeviceKind.GPU, 0),
        Placement("b_1", DeviceKind.GPU, 1),
        Placement("c_0", DeviceKind.CPU),
    )


def signature(in_shape: tuple[int, ...] = (-1, 16), out_shape: tuple[int, ...] = (-1, 16)) -> ModelSignature:
    return ModelSignature((TensorSignature("IN", "INT32", in_shape),), (TensorSignature("OUT", "INT8", out_shape),))


def completed(text: str, graph: ModelSignature, default: int = 4) -> ModelConfig:
    config = text_format.Parse(text, ModelConfig(name="m"))
    auto_complete(config, graph, default)
    return config


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("input {} output {}", True),
        ("batch_input {} output {}", True),
        ("input {}", False),
        ("output {}", False),
        ("", False),
    ],
)
def test_graph_is_read_unless_inputs_and_outputs_are_configured(
    text: str, complete: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = text_format.Parse(text, ModelConfig(name="m"))
    assert (is_complete(config), needs_signature(config)) == (complete, not complete)
    said = "skipping model configuration auto-complete for 'm': inputs and outputs already specified"
    assert caplog.messages == [said] * complete


IN, OUT = 'input { name: "IN" data_type: TYPE_INT32 %s }', 'output { name: "OUT" data_type: TYPE_INT8 %s }'
ROWS = f"{IN % 'dims: 16'} {OUT % 'dims: 16'}"
ALL = f"{IN % 'dims: [ -1, 16 ]'} {OUT % 'dims: [ -1, 16 ]'}"
FAULT = BatchingFault("a row changes", "mend it")
AUTOFILLED = (
    "autofilled max_batch_size to 4 for model 'm' since batching is supported but no max_batch_size is specified in "
    "model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size"
)
ONE_BY_ONE = (
    "model 'm' runs one request at a time, because a trial has shown that its graph does not keep the requests of a "
    "batch apart: a row changes; to batch it, mend it"
)
NO_LAYOUT = "model layout for model m does not support batching while non-zero max_batch_size is specified"


@pytest.mark.parametrize(
    ("text", "graph", "default", "wanted", "said"),
    [
        ("", signature(), 4, f"max_batch_size: 4 dynamic_batching {{}} {ROWS}", [AUTOFILLED]),
        ("", signature(), 1, f"max_batch_size: 1 {ROWS}", [AUTOFILLED.replace("to 4", "to 1", 1)]),
        ("", signature(), 0, ALL, []),
        (
            'max_batch_size: 8 batch_input { target_name: "IN" }',
            signature(),
            4,
            f'max_batch_size: 8 dynamic_batching {{}} batch_input {{ target_name: "IN" }} {OUT % "dims: 16"}',
            [],
        ),
        # What the scheduler provides is no tensor of the client.
        *(
            (
                f"max_batch_size: 8 sequence_batching {{ {own} }}",
                signature(),
                4,
                f"max_batch_size: 8 sequence_batching {{ {own} }} {left}",
                [],
            )
            for own, left in (
                ('control_input { name: "IN" control {} }', OUT % "dims: 16"),
                ('state { input_name: "IN" output_name: "OUT" }', ""),
            )
        ),
        # Dimensions that a configuration cannot express.
        (
            "max_batch_size: 8",
            signature((-1,), (-1, 0, 3)),
            4,
            f"max_batch_size: 8 dynamic_batching {{}} {IN % 'dims: 1 reshape {}'} {OUT % 'dims: [ -1, 3 ]'}",
            [],
        ),
        ("", signature((), (0,)), 0, f"{IN % 'dims: 1'} {OUT % 'dims: -1'}", []),
        # What the model says of itself counts more than the sizes, and what a trial has shown more than these.
        ("", replace(signature(), can_batch=False), 4, ALL, []),
        ("max_batch_size: 8", replace(signature(), can_batch=False), 4, f"max_batch_size: 8 {ROWS}", [NO_LAYOUT]),
        (
            "",
            replace(signature((2, 16), (2, 16)), can_batch=True),
            4,
            f"max_batch_size: 4 dynamic_batching {{}} {ROWS}",
            [AUTOFILLED],
        ),
        ("", replace(signature(), batching_fault=FAULT), 4, ALL, [ONE_BY_ONE]),
        ("", replace(signature(), batching_fault=FAULT), 0, ALL, []),
        (
            "max_batch_size: 8",
            replace(signature(), batching_fault=FAULT),
            4,
            f"max_batch_size: 8 dynamic_batching {{}} {ROWS}",
            [],
        ),
    ],
)
def test_missing_fields_are_completed_from_the_graph(
    text: str, graph: ModelSignature, default: int, wanted: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert completed(text, graph, default) == text_format.Parse(wanted, ModelConfig(name="m"))
    assert caplog.messages == said


@pytest.mark.parametrize(("in_shape", "out_shape"), [((2, 4), (-1, 4)), ((-1, 4), ()), ((-1, 4), (2, 4))])
def test_batch_size_for_a_graph_that_cannot_batch_is_refused(
    in_shape: tuple[int, ...], out_shape: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert completed("", signature(in_shape, out_shape)).max_batch_size == 0
    assert completed("", signature(in_shape, out_shape), default=0).max_batch_size == 0
    side, name, shape = ("input", "IN", in_shape) if in_shape[:1] != (-1,) else ("output", "OUT", out_shape)
    tensor = f"{side} '{name}' has shape [{','.join(map(str, shape))}]"
    assert caplog.messages == [
        "model 'm' runs one request at a time, because the first dimension of each tensor must be -1 for batching, "
        f"and {tensor}; to batch it, export it with a dynamic first dimension"
    ]
    with pytest.raises(ConfigInvalid) as caught:
        completed("max_batch_size: 8", signature(in_shape, out_shape))
    assert caught.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )
    assert (caught.value.hint or "").startswith(tensor)
