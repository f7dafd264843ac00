"""`python -m deploy.sagemaker` with moto: create, scale, delete, and a queue in S3.

moto has no UpdateEndpoint and accepts duplicates; tests/unit/deploy/sagemaker/test_actions.py covers both.
"""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.loaders import JSONFileLoader

from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator
from tests.contract.repository.s3_emulator import REGION, S3Emulator, leave_aws
from tests.contract.sagemaker.sagemaker_archives import pack
from tests.project import ROOT
from tests.unit.deploy.sagemaker.sagemaker_command import ASYNC, MULTI_MODEL, REAL_TIME, SERVERLESS, Result, run

pytestmark = pytest.mark.slow

Deploy = Callable[..., Result]
REQUEST = "deploy/digits/6.json"


@pytest.fixture(scope="module", autouse=True)
def _models_read_once() -> Iterator[None]:
    """Each command makes a session of its own, which would parse the megabytes of botocore's service models again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", staticmethod(cache(JSONFileLoader().load_file)))
        yield


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Emulator]:
    with S3Emulator() as emulator:
        yield emulator


def emulated(endpoint: str) -> tuple[str, ...]:
    return "--region", REGION, "--endpoint-url", endpoint


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of an emulator for boto3, without the configuration of this machine."""
    leave_aws(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "emulator")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "emulator-secret")


@pytest.fixture
def deploy(moto: S3Emulator, credentials: None) -> Deploy:
    return lambda *arguments: run(*arguments, *emulated(moto.endpoint))


@pytest.fixture(scope="module")
def clients(moto: S3Emulator) -> Iterator[dict[str, Any]]:
    """moto's services, to examine the created resources."""
    session = boto3.session.Session("emulator", "emulator-secret", region_name=REGION)
    services = ("sagemaker", "application-autoscaling", "cloudwatch")
    made = {service: session.client(service, endpoint_url=moto.endpoint) for service in services}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def sagemaker(clients: dict[str, Any]) -> Any:
    return clients["sagemaker"]


@pytest.fixture
def cloudwatch(clients: dict[str, Any]) -> Any:
    return clients["cloudwatch"]


def done(result: Result) -> list[str]:
    assert (result.status, result.errors) == (0, "")
    return result.out.splitlines()


def names_with(sagemaker: Any, what: str) -> set[str]:
    found = {each["ModelName"] for each in sagemaker.list_models()["Models"]}
    found |= {each["EndpointConfigName"] for each in sagemaker.list_endpoint_configs()["EndpointConfigs"]}
    return {name for name in found if name.startswith(what)}


@pytest.mark.parametrize(
    ("name", "arguments"), [("real", REAL_TIME), ("shelf", MULTI_MODEL), ("films", ASYNC), ("seldom", SERVERLESS)]
)
def test_endpoint_of_each_kind_is_created_and_deleted(
    name: str, arguments: tuple[str, ...], deploy: Deploy, sagemaker: Any, cloudwatch: Any
) -> None:
    lines = done(deploy("create", name, *arguments, "--tag=team=vision"))
    assert lines[-1] == f"{name}: InService"
    described = sagemaker.describe_endpoint(EndpointName=name)
    config = sagemaker.describe_endpoint_config(EndpointConfigName=described["EndpointConfigName"])
    model = sagemaker.describe_model(ModelName=config["ProductionVariants"][0]["ModelName"])
    assert model["PrimaryContainer"]["Mode"] == ("MultiModel" if name == "shelf" else "SingleModel")
    assert ("AsyncInferenceConfig" in config) == (name == "films")
    assert ("ServerlessConfig" in config["ProductionVariants"][0]) == (name == "seldom")
    assert len(alarms_of(cloudwatch, name)) == {"shelf": 4, "seldom": 2}.get(name, 3)

    done(deploy("delete", name))
    assert name not in [each["EndpointName"] for each in sagemaker.list_endpoints()["Endpoints"]]
    assert names_with(sagemaker, f"{name}-") == set()
    assert alarms_of(cloudwatch, name) == []


def alarms_of(cloudwatch: Any, name: str) -> list[str]:
    found = cloudwatch.describe_alarms(AlarmNamePrefix=f"{name}-")["MetricAlarms"]
    return [each["AlarmName"] for each in found]


def test_delete_does_not_touch_other_endpoints(deploy: Deploy, sagemaker: Any, cloudwatch: Any) -> None:
    for name in ("one", "one-two"):
        done(deploy("create", name, *REAL_TIME))
    before = names_with(sagemaker, "one-two-")
    lines = done(deploy("delete", "one"))
    assert [line for line in lines if "one-two" in line] == []
    assert names_with(sagemaker, "one-") == before
    assert len(before) == 2
    assert len(alarms_of(cloudwatch, "one-two")) == 3
    done(deploy("delete", "one-two"))


def test_delete_of_a_missing_endpoint_succeeds(deploy: Deploy) -> None:
    assert done(deploy("delete", "nothing")) == ["DeleteEndpoint nothing: does not exist", "nothing: gone"]


def test_scaling_is_removed_without_the_endpoint(deploy: Deploy, clients: dict[str, Any], sagemaker: Any) -> None:
    autoscaling = clients["application-autoscaling"]
    done(deploy("create", "wide", *REAL_TIME))
    done(deploy("scale", "wide", "--min=1", "--max=3", "--target=100"))
    assert len(autoscaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]) == 1
    done(deploy("scale", "wide", "--off"))
    assert autoscaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []
    assert sagemaker.describe_endpoint(EndpointName="wide")["EndpointStatus"] == "InService"
    done(deploy("delete", "wide"))


def queue_result(moto: S3Emulator, data: object, *, is_failure: bool = False) -> None:
    """Set the result that the next queued call finds in S3."""
    connection = http.client.HTTPConnection(moto.address, timeout=60)
    result = {"data": json.dumps(data), "is_failure": is_failure}
    connection.request(
        "POST",
        "/moto-api/static/sagemaker/async-endpoint-results",
        json.dumps({"results": [result], "region": REGION}),
        {"Content-Type": "application/json"},
    )
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 201


def test_queued_answer_is_found_in_s3(moto: S3Emulator, deploy: Deploy) -> None:
    queue_result(moto, {"predictions": [[0.25, 0.75]]})
    lines = done(deploy("smoke", "queued", "--kind=async", "--form=instances", f"--request={REQUEST}"))
    assert [line.partition(",")[0] for line in lines] == ["instances: 1 rows of 2 values"]


def test_queued_failure_is_reported(moto: S3Emulator, deploy: Deploy) -> None:
    queue_result(moto, {"error": "the shape is another one"}, is_failure=True)
    result = deploy("smoke", "failing", "--kind=async", "--form=v2", f"--request={REQUEST}")
    assert result.status == 1
    assert "wrote a failure" in result.errors
    assert "the shape is another one" in result.errors


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the address of an emulator, which needs no credentials. Nothing is sent unsigned."""
    leave_aws(monkeypatch, tmp_path)
    result = run("create", "nobody", *REAL_TIME, "--region", REGION)
    assert result.status == 1
    assert "CreateModel: there are no credentials" in result.errors


# --- smoke, with the real server in the container of `trident emulate sagemaker`


FORMS = ["v2", "binary", "instances", "csv"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    for name in ("simple", "digits"):
        pack(ROOT / "deploy" / "models" / name, folder / f"{name}.tar.gz")
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A request of three items for the model with two inputs."""
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [3, 16], "data": list(range(start, start + 48))}
        for name, start in (("INPUT0", 0), ("INPUT1", 100))
    ]
    path = tmp_path_factory.mktemp("request") / "pair.json"
    path.write_text(json.dumps({"inputs": inputs}))
    return str(path)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[SageMakerEmulator]:
    folder = tmp_path_factory.mktemp("one")
    with SageMakerEmulator(folder, Path(shutil.copy(archives / "digits.tar.gz", folder))) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, archives: Path) -> Iterator[SageMakerEmulator]:
    with SageMakerEmulator(tmp_path_factory.mktemp("many"), archives, "--multi-model") as emulator:
        yield emulator


def smoke(emulator: SageMakerEmulator, *arguments: str) -> Result:
    return run("smoke", "any", *arguments, *emulated(emulator.client.meta.endpoint_url))


def passed(result: Result) -> list[str]:
    """The lines of the forms that were sent, with the size of their answers."""
    assert (result.status, result.errors) == (0, "")
    return [line.partition(",")[0] for line in result.out.splitlines()]


@pytest.mark.usefixtures("credentials")
def test_one_model_answers_the_same_in_every_form(one: SageMakerEmulator) -> None:
    assert passed(smoke(one, "--request", REQUEST)) == [f"{form}: 1 rows of 10 values" for form in FORMS]


@pytest.mark.usefixtures("credentials")
def test_smoke_test_of_a_named_model_passes(many: SageMakerEmulator, pair: str) -> None:
    to = ("--kind=multi-model", "--target-model")
    digits = passed(smoke(many, *to, "digits.tar.gz", "--request", REQUEST))
    both = passed(smoke(many, *to, "simple.tar.gz", "--request", pair))
    assert digits == [f"{form}: 1 rows of 10 values" for form in FORMS]
    assert both == [f"{form}: 3 rows of 32 values" for form in FORMS]


@pytest.mark.usefixtures("credentials")
def test_refused_request_fails(one: SageMakerEmulator, pair: str) -> None:
    result = smoke(one, "--request", pair)
    assert result.status == 1
    assert "InvokeEndpoint: ModelError" in result.errors
    assert "expected 1 inputs but got 2 inputs" in result.errors
