"""Instance groups: their defaults on a machine with and without GPUs, and their problems."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.autocomplete import CpuInstead, GpuIds, instance_group_problems, normalize_instance_groups
from trident.core.config.schema import ModelConfig

Group = tuple[str, int, int, list[int]]
AUTO, GPU, CPU, MODEL = range(4)


def config_of(text: str, backend: str = "onnxruntime") -> ModelConfig:
    return text_format.Parse(text, ModelConfig(name="m", backend=backend))


def normalized(text: str, gpu_ids: GpuIds, backend: str = "onnxruntime") -> list[Group]:
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


def test_missing_groups_become_one_named_after_the_model() -> None:
    assert normalized("", []) == [("m", CPU, 2, [])]
    assert normalized("", None) == [("m", CPU, 2, [])]
    assert normalized("", [0]) == [("m", GPU, 1, [0])]
    assert normalized("", [], backend="python") == [("m", CPU, 1, [])]


def test_unnamed_groups_are_numbered() -> None:
    text = 'instance_group [ { kind: KIND_CPU count: 3 }, { name: "own" kind: KIND_CPU }, { kind: KIND_MODEL } ]'
    assert normalized(text, []) == [("m_0", CPU, 3, []), ("own", CPU, 2, []), ("m_2", MODEL, 1, [])]


def test_gpu_group_takes_all_gpus_unless_it_lists_some() -> None:
    text = "instance_group [ { kind: KIND_GPU }, { kind: KIND_GPU gpus: [ 1 ] count: 2 }, { gpus: [ 0 ] } ]"
    assert normalized(text, [0, 1]) == [("m_0", GPU, 1, [0, 1]), ("m_1", GPU, 2, [1]), ("m_2", GPU, 1, [0])]


def test_auto_becomes_cpu_if_a_listed_gpu_is_missing() -> None:
    assert normalized("instance_group { gpus: [ 0, 3 ] }", [0]) == [("m_0", CPU, 2, [0, 3])]
    assert problems("instance_group { gpus: [ 0, 3 ] }", [0]) == [
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"
    ]


def test_groups_that_ask_for_a_missing_gpu_may_run_on_the_cpu() -> None:
    text = "instance_group [ { kind: KIND_GPU }, { gpus: [ 0 ] count: 3 }, { kind: KIND_MODEL } ]"
    assert normalized(text, CpuInstead()) == [("m_0", CPU, 2, []), ("m_1", CPU, 3, []), ("m_2", MODEL, 1, [])]
    assert problems(text, CpuInstead()) == []
    assert len(problems("instance_group { kind: KIND_CPU gpus: [ 0 ] }", CpuInstead())) == 1


@pytest.mark.parametrize("gpu_ids", [(), None])
def test_a_missing_gpu_is_answered_with_both_ways_out(gpu_ids: GpuIds) -> None:
    config = config_of("instance_group { kind: KIND_GPU }")
    normalize_instance_groups(config, gpu_ids)
    [problem] = instance_group_problems(config, "m", gpu_ids)
    assert "--gpu-missing=cpu, or use KIND_CPU; to run it on a GPU, " in problem.hint
    assert "start the server where it sees one" in problem.hint
    assert ("install trident-inference[gpu]" in problem.hint) == (gpu_ids is None)


def test_ensemble_has_no_groups() -> None:
    assert normalized('platform: "ensemble"', [0]) == []
    assert problems('platform: "ensemble"', []) == []


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
    assert problems('platform: "onnxruntime_onnx" instance_group { profile: [ "0" ] }', []) == [
        f"{prefix}and platform onnxruntime_onnxspecifies profile field which is only supported for TensorRT models"
    ]
    assert problems("instance_group { passive: true }", []) == [
        "every instance group of model m is passive, so no instance would execute requests"
    ]


def test_server_without_gpu_support_refuses_gpu_groups() -> None:
    assert problems("instance_group { kind: KIND_GPU gpus: [ 0 ] }", None) == [
        "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"
    ]
    assert problems("instance_group { kind: KIND_CPU }", None) == []


def test_missing_groups_are_a_problem_before_normalisation() -> None:
    assert [problem.message for problem in instance_group_problems(ModelConfig(name="m"), "m", [])] == [
        "must specify one or more 'instance group's for m"
    ]
    unfilled = config_of('instance_group { name: "g" kind: KIND_GPU }')
    assert [problem.message for problem in instance_group_problems(unfilled, "m", [0])] == [
        "instance group g of model m has kind KIND_GPU but specifies no GPUs"
    ]
