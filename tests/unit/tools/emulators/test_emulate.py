"""`trident emulate`: its platforms, the signals that stop it, and the options of SageMaker and Vertex AI."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.servers.simple_model import GOLDEN_MODELS
from trident.adapters.common.options import BadOption
from trident.app.cli import main
from trident.tools.emulators.azureml import EmulatorOptions as AzureOptions
from trident.tools.emulators.command import (
    azureml_example,
    platform_of,
    read_azureml,
    read_sagemaker,
    read_vertex,
    stop_signals,
    vertex_example,
)
from trident.tools.emulators.sagemaker.emulator import EmulatorOptions as SageMakerOptions
from trident.tools.emulators.sagemaker.hosting import Hosting
from trident.tools.emulators.vertex.batch import BatchOptions, InstanceConfig, InstancesFormat, InstanceType
from trident.tools.emulators.vertex.emulator import EmulatorOptions as VertexOptions
from trident.tools.emulators.vertex.endpoint import Deployment, EndpointType, VertexLimits, batch_limits


@pytest.mark.parametrize(
    ("arguments", "platform"),
    [
        (["sagemaker", "m"], "sagemaker"),
        (["vertex", "sagemaker"], "vertex"),
        (["--port=1", "--env", "A=1", "vertex", "m", "--", "x"], "vertex"),
    ],
)
def test_the_platform_is_the_first_platform_name(arguments: list[str], platform: str) -> None:
    assert platform_of(arguments) == platform
    with pytest.raises(BadOption, match="a platform must be named: trident emulate sagemaker MODEL or"):
        platform_of([each for each in arguments if each not in ("sagemaker", "vertex")])


def azureml(model: str) -> AzureOptions:
    return read_azureml(["azureml", model], {})


def test_printed_calls_have_a_request_for_the_model(tmp_path: Path) -> None:
    simple = str(GOLDEN_MODELS / "simple")
    curl = azureml_example(azureml(simple), "http://h:1")
    assert curl.startswith(
        """curl -s http://h:1/score -H 'Content-Type: application/json' -d '{"inputs":[{"name":"INPUT0","""
    )
    code = vertex_example(vertex(simple), "http://h:1")
    compile(code, "printed", "exec")
    assert '{"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16},' in code
    # Nothing is known of a model that is elsewhere, or of several.
    for model in ("gs://bucket/mine", str(GOLDEN_MODELS), str(tmp_path)):
        assert "trident request NAME" in azureml_example(azureml(model), "http://h:1")
        code = vertex_example(vertex(model), "http://h:1")
        compile(code, "printed", "exec")
        assert "trident request NAME" in code


@pytest.mark.parametrize("more", [["sagemaker"], ["sagemaker", "--multi-model"], ["vertex"]])
def test_a_missing_model_ends_the_command_before_anything_starts(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *more, str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


# In a separate process, because a failure is a main thread that blocks forever.
_MANY_SIGNALS = """
import os, signal, threading
from trident.tools.emulators.command import stop_signals
from tests.waiting import until

def send():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGTERM)

with stop_signals() as stopped:
    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive():
        stopped.wait(0)
    assert stopped.wait(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event_and_regains_its_action_afterwards(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_signals() as stopped:
            assert not stopped.is_set()
            os.kill(os.getpid(), number)
            assert stopped.wait(30)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_at_any_moment_does_not_block_the_main_thread() -> None:
    subprocess.run([sys.executable, "-c", _MANY_SIGNALS], check=True, timeout=120)


# --- the options of SageMaker

PLAIN = Hosting()


def sagemaker(*arguments: str) -> SageMakerOptions:
    return replace(read_sagemaker(["sagemaker", *arguments], {"HERE": "1"}), hosting=PLAIN)


def test_the_options_of_sagemaker_are_read() -> None:
    command = (sys.executable, "-P", "-m", "trident.app")
    plain = SageMakerOptions(model="m.tar.gz", command=command, environment={"HERE": "1"}, hosting=PLAIN)
    assert sagemaker("m.tar.gz") == plain
    found = sagemaker("--multi-model", "--port=8199", "--env=A=1", "--env", "B=x=y", "--env=C=", "folder")
    variables = {"A": "1", "B": "x=y", "C": ""}
    assert found == replace(plain, model="folder", multi_model=True, api_port=8199, variables=variables)


# --- the options of Vertex AI


def vertex(*arguments: str) -> VertexOptions:
    return read_vertex(["vertex", *arguments], {"HERE": "1"})


def test_routes_variables_and_limits_are_read() -> None:
    plain = vertex("gs://bucket/mine/")
    assert (plain.model, plain.deployment) == ("gs://bucket/mine/", Deployment(display_name="mine"))
    assert (plain.limits, plain.environment) == (VertexLimits(), {"HERE": "1"})
    options = vertex("m", "--env=A=1", "--env", "B_2=x=y", "--predict-route=/predict", "--health-route=/health")
    assert options.variables == {"A": "1", "B_2": "x=y"}
    assert (options.deployment.predict_path, options.deployment.health_path) == ("/predict", "/health")
    options = vertex("m", "--invoke-route-prefix=/*")
    assert options.deployment.is_invoked
    assert "/invoke/" in vertex_example(options, "http://h:1")
    assert "PredictionServiceClient" in vertex_example(vertex("m"), "http://h:1")
    assert (vertex("m").limits.body_bytes, vertex("m").limits.inference_s) == (10_000_000, 600.0)
    shared = vertex("m", "--endpoint-type=shared")
    assert (shared.limits.body_bytes, shared.limits.inference_s) == (1_500_000, 60.0)
    assert shared.deployment.endpoint_type is EndpointType.SHARED
    longer = vertex("m", "--inference-timeout=3600", "--deployment-timeout=7200")
    assert (longer.limits.inference_s, longer.limits.deployment_s) == (3600.0, 7200.0)


def test_a_batch_job_is_read() -> None:
    options = vertex("m", "--batch=in.csv", "--output", "out", "--key-field=id", "--batch-size=8")
    assert options.batch == BatchOptions(
        input=Path("in.csv"),
        output=Path("out"),
        instances_format=InstancesFormat.CSV,
        config=InstanceConfig(key_field="id"),
        batch_size=8,
    )
    assert options.limits == batch_limits()
    more = ["--instances-format=jsonl", "--instance-type=array", "--included-fields=b,a", '--model-parameters={"x": 1}']
    batch = vertex("m", "--batch=in", "--output=out", *more).batch
    assert batch is not None
    assert batch.instances_format is InstancesFormat.JSONL
    assert batch.config == InstanceConfig(instance_type=InstanceType.ARRAY, included_fields=("b", "a"))
    assert batch.parameters == {"x": 1}


JOB = "a --batch=in.csv --output=out"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "one model must be named"),
        ("a b", "one model must be named"),
        ("a --port=65536", "--port"),
        ("a --env=A", "NAME=VALUE"),
        ("a --env==1", "NAME=VALUE"),
        (f"a --env=A={'x' * 1025}", "at most 1024 bytes"),
        ("a" + "".join(f" --env=A{n}=1" for n in range(101)), "at most 100 variables"),
        ("a" + "".join(f" --env=A{n}={'x' * 1000}" for n in range(40)), "32768 in all"),
        ("a --multi-modal", "did you mean --multi-model?"),
        ("a --batch=in", "has both an input and an output"),
        ("a --batch=in --output=out --port=1", "neither several models nor an endpoint"),
    ],
)
def test_invalid_sagemaker_options_are_refused(line: str, text: str) -> None:
    with pytest.raises(BadOption, match=re.escape(text)):
        sagemaker(*line.split())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--args=a", "it goes with a model"),
        ("a b", "at most one model"),
        ("a --port=x", "--port"),
        ("a --env=A", "NAME=VALUE"),
        ("a --env=AIP_MODE=x", "names that begin with AIP_"),
        ("a --env=a-b=x", "'a-b' is not a valid name"),
        ("a --endpoint-type=private", "dedicated, shared"),
        ("a --inference-timeout=3601", "at most 3600 s"),
        ("a --inference-timeout=10 --endpoint-type=shared", "cannot be set"),
        ("a --deployment-timeout=7201", "at most 7200 s"),
        ("a --predict-route=predict", "the path of a URL"),
        ("a --invoke-route-prefix=/v2", "takes only /*"),
        ("a --invoke-route-prefix=/* --predict-route=/p", "not both"),
        ("a --invoke-route-prefix=/* --endpoint-type=shared", "needs a dedicated endpoint"),
        ("a --output=out", "goes with --batch"),
        ("a --batch=in.csv", "--output"),
        (f"{JOB} --port=1", "has no endpoint"),
        (f"{JOB} --batch-size=0", "--batch-size"),
        (f"{JOB} --model-parameters={{", "JSON document"),
        ("a --multi-model", "unknown option"),
    ],
)
def test_invalid_vertex_ai_options_are_refused(line: str, text: str) -> None:
    with pytest.raises(BadOption, match=re.escape(text)):
        vertex(*line.split())
