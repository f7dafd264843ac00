from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption
from trident.app.commands.emulate_vertex import example, read_options
from trident.app.emulators.vertex.batch import BatchOptions, InstanceConfig, InstancesFormat, InstanceType
from trident.app.emulators.vertex.emulator import EmulatorOptions
from trident.app.emulators.vertex.limits import Deployment, EndpointType, PlatformLimits, batch_limits


def read(*arguments: str) -> EmulatorOptions:
    return read_options(["vertex", *arguments], {"HERE": "1"})


def test_a_model_is_the_only_required_argument() -> None:
    options = read("gs://bucket/mine/")
    assert options.model == "gs://bucket/mine/"
    assert options.deployment == Deployment(display_name="mine")
    assert options.limits == PlatformLimits()
    assert (options.api_port, options.arguments, options.variables, options.batch) == (0, (), {}, None)
    assert options.environment == {"HERE": "1"}
    assert list(options.command[-2:]) == ["trident.app", "serve"]


def test_routes_and_variables_are_read() -> None:
    options = read("m", "--env=A=1", "--env", "B_2=x=y", "--predict-route=/predict", "--health-route=/health")
    assert options.variables == {"A": "1", "B_2": "x=y"}
    assert (options.deployment.predict_path, options.deployment.health_path) == ("/predict", "/health")
    options = read("m", "--invoke-route-prefix=/*")
    assert options.deployment.is_invoked
    assert "/invoke/" in example(options, "http://h:1")
    assert "PredictionServiceClient" in example(read("m"), "http://h:1")


def test_limits_depend_on_the_endpoint_type() -> None:
    assert (read("m").limits.body_bytes, read("m").limits.inference_s) == (10_000_000, 600.0)
    shared = read("m", "--endpoint-type=shared")
    assert (shared.limits.body_bytes, shared.limits.inference_s) == (1_500_000, 60.0)
    assert shared.deployment.endpoint_type is EndpointType.SHARED
    longer = read("m", "--inference-timeout=3600", "--deployment-timeout=7200")
    assert (longer.limits.inference_s, longer.limits.deployment_s) == (3600.0, 7200.0)


def test_a_batch_job_is_read() -> None:
    options = read("m", "--batch=in.csv", "--output", "out", "--key-field=id", "--batch-size=8")
    assert options.batch == BatchOptions(
        input=Path("in.csv"),
        output=Path("out"),
        instances_format=InstancesFormat.CSV,
        config=InstanceConfig(key_field="id"),
        batch_size=8,
    )
    assert options.limits == batch_limits()


def test_the_instance_options_of_a_batch_job_are_read() -> None:
    arguments = [
        "--instances-format=jsonl",
        "--instance-type=array",
        "--included-fields=b,a",
        '--model-parameters={"x": 1}',
    ]
    options = read("m", "--batch=in", "--output=out", *arguments)
    assert options.batch is not None
    assert options.batch.instances_format is InstancesFormat.JSONL
    assert options.batch.config == InstanceConfig(instance_type=InstanceType.ARRAY, included_fields=("b", "a"))
    assert options.batch.parameters == {"x": 1}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--args=a"], "it goes with a model"),
        (["a", "b"], "at most one model"),
        (["a", "--port=x"], "--port"),
        (["a", "--env=A"], "NAME=VALUE"),
        (["a", "--env=AIP_MODE=x"], "names that begin with AIP_"),
        (["a", "--env=a-b=x"], "'a-b' is not a valid name"),
        (["a", "--endpoint-type=private"], "dedicated, shared"),
        (["a", "--inference-timeout=3601"], "at most 3600 s"),
        (["a", "--inference-timeout=10", "--endpoint-type=shared"], "cannot be set"),
        (["a", "--deployment-timeout=7201"], "at most 7200 s"),
        (["a", "--predict-route=predict"], "the path of a URL"),
        (["a", "--invoke-route-prefix=/v2"], "takes only /*"),
        (["a", "--invoke-route-prefix=/*", "--predict-route=/p"], "not both"),
        (["a", "--invoke-route-prefix=/*", "--endpoint-type=shared"], "needs a dedicated endpoint"),
        (["a", "--output=out"], "goes with --batch"),
        (["a", "--batch=in.csv"], "--output"),
        (["a", "--batch=in.csv", "--output=out", "--port=1"], "has no endpoint"),
        (["a", "--batch=in.csv", "--output=out", "--batch-size=0"], "--batch-size"),
        (["a", "--batch=in.csv", "--output=out", "--model-parameters={"], "JSON document"),
        (["a", "--multi-model"], "unknown option"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(BadOption) as refusal:
        read(*arguments)
    assert text in str(refusal.value)
