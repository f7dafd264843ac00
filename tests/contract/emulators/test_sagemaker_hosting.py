"""`trident emulate sagemaker` with a settings file: instances, components, a queue, serverless and batch transform.

Source: docs/spec/sagemaker.md sections A3, A6 and A7.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from botocore.exceptions import ClientError

from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator, call, refusal, response
from tests.contract.repository.s3_emulator import REGION, S3Emulator, leave_aws
from tests.contract.sagemaker.sagemaker_archives import write_flat
from tests.hub_folders import mean_of, write_folder
from tests.project import ROOT
from tests.unit.deploy.sagemaker.sagemaker_command import run as deploy
from tests.waiting import until
from trident.tools.emulators.sagemaker.api_model import read_settings_file
from trident.tools.emulators.sagemaker.hosting import OPERATIONS, Hosting

pytestmark = pytest.mark.slow

CSV = "text/csv"
PAGE = (ROOT / "docs" / "sagemaker.md").read_text()
RUNNING_MEAN = ROOT / "deploy" / "examples" / "running_mean"


def settings(folder: Path, **operations: Any) -> str:
    path = folder / "settings.json"
    path.write_text(json.dumps(operations))
    return f"--settings={path}"


def opened(emulator: SageMakerEmulator, body: bytes, **more: str) -> str:
    session: str = call(emulator, body, SessionId="NEW_SESSION", **more)["NewSessionId"].partition(";")[0]
    return session


def client_of(service: str, url: str) -> contextlib.closing[Any]:
    session = boto3.session.Session("any", "any", region_name=REGION)
    return contextlib.closing(session.client(service, endpoint_url=url))


@contextlib.contextmanager
def management(emulator: SageMakerEmulator) -> Iterator[Any]:
    """The real SDK's client of the API that manages endpoints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client = client_of("sagemaker", emulator.client.meta.endpoint_url)
    with client as made:
        yield made


# --- copies of a component


COMPONENT = {
    "InferenceComponentName": "mean",
    "Specification": {
        "ComputeResourceRequirements": {"MinMemoryRequiredInMb": 128},
        "SchedulingConfig": {"PlacementStrategy": "SPREAD"},
    },
    "RuntimeConfig": {"CopyCount": 2},
}


@pytest.fixture(scope="module")
def component(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SageMakerEmulator]:
    """Two copies on two instances. No test breaks a limit."""
    folder = tmp_path_factory.mktemp("component")
    config = {"ProductionVariants": [{"InitialInstanceCount": 2}]}
    option = settings(folder, CreateEndpointConfig=config, CreateInferenceComponent=COMPONENT)
    with SageMakerEmulator(folder, RUNNING_MEAN, option) as emulator:
        yield emulator
        emulator.end()
        assert emulator.breaches() == []


def test_session_requests_go_to_the_copy_that_opened_the_session(component: SageMakerEmulator) -> None:
    """Another copy would refuse the request, because it does not know the sequence."""
    named = {"InferenceComponentName": "mean"}
    sessions = [opened(component, f"{n}\n".encode(), **named) for n in range(6)]
    for n, session in enumerate(sessions):
        answers = [call(component, b"10\n", SessionId=session, **named)["Body"] for _ in range(2)]
        assert [float(answer) for answer in answers] == pytest.approx([(n + 10) / 2, (n + 20) / 3])
    last = call(component, b"0\n", SessionId=sessions[0], CustomAttributes="sequence_end=true", **named)
    assert last["ClosedSessionId"] == sessions[0]
    found = refusal(component, "ValidationError", b"1\n", SessionId=sessions[0], **named)
    assert "does not exist or has expired" in found["text"]


def test_component_is_placed_and_scales_to_zero_and_back(component: SageMakerEmulator) -> None:
    assert "a copy of the container starts on instance 1 of 2" in component.text()
    assert "a copy of the container starts on instance 2 of 2" in component.text()
    assert "required" in refusal(component, "ValidationError", b"1\n")["text"]
    with management(component) as client:

        def scale(count: int) -> None:
            client.update_inference_component_runtime_config(
                InferenceComponentName="mean", DesiredRuntimeConfig={"CopyCount": count}
            )
            until(lambda: described()["InferenceComponentStatus"] == "InService")
            assert described()["RuntimeConfig"] == {"DesiredCopyCount": count, "CurrentCopyCount": count}

        def described() -> Any:
            return client.describe_inference_component(InferenceComponentName="mean")

        session = opened(component, b"1\n", InferenceComponentName="mean")
        scale(0)
        found = refusal(component, "ValidationError", b"1\n", InferenceComponentName="mean")
        assert "no capacity" in found["text"]
        scale(1)
        assert opened(component, b"1\n", InferenceComponentName="mean") != session
        found = refusal(component, "ValidationError", b"1\n", SessionId=session, InferenceComponentName="mean")
        assert "does not exist" in found["text"]


# --- objects in S3


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Emulator]:
    with S3Emulator() as emulator:
        yield emulator


@pytest.fixture(scope="module")
def s3(moto: S3Emulator) -> Iterator[Any]:
    with client_of("s3", moto.endpoint) as client:
        client.create_bucket(Bucket="data")
        yield client


@pytest.fixture(scope="module")
def aws(moto: S3Emulator, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": moto.endpoint,
        "AWS_ENDPOINT_URL_SNS": moto.endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path_factory.mktemp("aws") / "config"),
    }


@pytest.fixture(scope="module")
def topics(moto: S3Emulator) -> Iterator[dict[str, str]]:
    """A success and an error topic, whose messages reach an SQS queue of the topic's name."""
    found = {}
    with client_of("sns", moto.endpoint) as sns, client_of("sqs", moto.endpoint) as sqs:
        for name in ("SuccessTopic", "ErrorTopic"):
            found[name] = sns.create_topic(Name=name)["TopicArn"]
            url = sqs.create_queue(QueueName=name)["QueueUrl"]
            arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            raw = {"RawMessageDelivery": "true"}
            sns.subscribe(TopicArn=found[name], Protocol="sqs", Endpoint=arn, Attributes=raw)
        yield found


def message(moto: S3Emulator, topic: str, inference_id: str) -> Any:
    with client_of("sqs", moto.endpoint) as sqs:
        url = sqs.get_queue_url(QueueName=topic)["QueueUrl"]
        found: list[Any] = []

        def is_told() -> bool:
            received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", ())
            found.extend(json.loads(each["Body"]) for each in received)
            return any(each["inferenceId"] == inference_id for each in found)

        until(is_told)
    return next(each for each in found if each["inferenceId"] == inference_id)


@pytest.fixture(scope="module")
def queue(
    s3: Any, aws: dict[str, str], topics: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SageMakerEmulator]:
    """An asynchronous endpoint with its answers in S3."""
    folder = tmp_path_factory.mktemp("queue")
    told = {**topics, "IncludeInferenceResponseIn": ["SUCCESS_NOTIFICATION_TOPIC"]}
    target = {"S3OutputPath": "s3://data/answers", "S3FailurePath": "s3://data/failures", "NotificationConfig": told}
    config = {"AsyncInferenceConfig": {"OutputConfig": target}}
    option = settings(folder, CreateEndpointConfig=config)
    with SageMakerEmulator(folder, ROOT / "deploy" / "models" / "digits", option, variables=aws) as emulator:
        yield emulator
        emulator.end()
        assert emulator.breaches() == []


def content(s3: Any, location: str) -> str:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    until(lambda: s3.list_objects_v2(Bucket=bucket, Prefix=key)["KeyCount"])
    return str(s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode())


def request_body() -> bytes:
    return (ROOT / "deploy" / "digits" / "6.json").read_bytes()


def test_asynchronous_call_reads_its_input_from_s3_and_writes_its_answer(
    queue: SageMakerEmulator, s3: Any, moto: S3Emulator
) -> None:
    s3.put_object(Bucket="data", Key="in/6.json", Body=request_body())
    answer = queue.client.invoke_endpoint_async(
        EndpointName="any", InputLocation="s3://data/in/6.json", ContentType="application/json", Filename="six.out"
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert answer["OutputLocation"] == "s3://data/answers/six.out"
    found = json.loads(content(s3, answer["OutputLocation"]))
    assert (found["model_name"], found["id"]) == ("digits", answer["InferenceId"])
    told = message(moto, "SuccessTopic", answer["InferenceId"])
    assert (told["invocationStatus"], told["requestParameters"]["endpointName"]) == ("Completed", "any")
    assert told["requestParameters"]["inputLocation"] == "s3://data/in/6.json"
    assert told["responseParameters"]["outputLocation"] == answer["OutputLocation"]
    assert json.loads(base64.b64decode(told["responseBody"]["content"])) == found
    inline = queue.client.invoke_endpoint_async(EndpointName="any", Body=request_body(), ContentType="application/json")
    assert json.loads(content(s3, inline["OutputLocation"]))["outputs"] == found["outputs"]


def test_smoke_test_of_a_queue_needs_no_credentials(
    queue: SageMakerEmulator, moto: S3Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave_aws(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    request, url = ROOT / "deploy" / "digits" / "6.json", queue.client.meta.endpoint_url
    result = deploy(
        "smoke", "films", "--kind=async", f"--request={request}", "--wait-secs=600", f"--endpoint-url={url}"
    )
    assert (result.status, result.errors) == (0, ""), result.out


def test_failed_asynchronous_call_stores_its_error(queue: SageMakerEmulator, s3: Any, moto: S3Emulator) -> None:
    answer = queue.client.invoke_endpoint_async(EndpointName="any", Body=b"1,2", ContentType=CSV)
    assert "expected 64 columns, got 2" in content(s3, answer["FailureLocation"])
    told = message(moto, "ErrorTopic", answer["InferenceId"])
    assert (told["invocationStatus"], "responseBody" in told) == ("Failed", False)
    assert "expected 64 columns, got 2" in told["failureReason"]


def test_calls_wait_in_the_queue_without_an_instance(queue: SageMakerEmulator, s3: Any) -> None:
    with management(queue) as client:

        def scale(count: int) -> None:
            wanted = {"VariantName": "AllTraffic", "DesiredInstanceCount": count}
            client.update_endpoint_weights_and_capacities(EndpointName="any", DesiredWeightsAndCapacities=[wanted])

        scale(0)
        answer = queue.client.invoke_endpoint_async(
            EndpointName="any", Body=request_body(), ContentType="application/json"
        )
        scale(1)
        assert json.loads(content(s3, answer["OutputLocation"]))["model_name"] == "digits"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "Exactly one of InputLocation and Body"),
        ({"Body": b"1", "InputLocation": "s3://data/x"}, "Exactly one"),
        ({"InputLocation": "https://data/x"}, "not in S3"),
        ({"Body": b"1" * 128_001}, "use InputLocation"),
        ({"Body": b"1", "InvocationTimeoutSeconds": 3601}, "1 to 3600"),
    ],
)
def test_asynchronous_calls_beyond_the_platforms_limits_are_refused(
    queue: SageMakerEmulator, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClientError) as raised:
        queue.client.invoke_endpoint_async(EndpointName="any", ContentType=CSV, **given)
    assert text in response(raised.value)["text"]


def test_asynchronous_endpoint_takes_no_other_calls(queue: SageMakerEmulator) -> None:
    assert "use InvokeEndpointAsync" in refusal(queue, "ValidationError")["text"]


# --- batch transform


def test_batch_transform_splits_joins_and_assembles_objects_of_s3(s3: Any, aws: dict[str, str], tmp_path: Path) -> None:
    for name in ("first", "second"):
        rows = "".join(f"{name}{n},{n},0,0,0\n" for n in range(2500))
        s3.put_object(Bucket="data", Key=f"records/{name}.csv", Body=rows.encode())
    s3.put_object(Bucket="data", Key="records/broken.csv", Body=b"id,text\n")
    job = {
        "TransformInput": {"ContentType": CSV, "SplitType": "Line"},
        "TransformOutput": {"Accept": CSV, "AssembleWith": "Line"},
        "MaxConcurrentTransforms": 3,
        "DataProcessing": {"InputFilter": "$[1:]", "JoinSource": "Input", "OutputFilter": "$[0,5]"},
    }
    option = settings(tmp_path, CreateTransformJob=job)
    paths = ("--batch=s3://data/records/", "--output=s3://data/results")
    model = write_flat(tmp_path / "twice", 2)
    with SageMakerEmulator(tmp_path, model, *paths, option, ready=False, variables=aws) as emulator:
        emulator.status = 1
        emulator.wait()
        assert "2 objects transformed, 1 failed" in emulator.text()
    for name in ("first", "second"):
        expected = "".join(f"{name}{n},{float(2 * n)}\n" for n in range(2500))
        assert content(s3, f"s3://data/results/{name}.csv.out") == expected
    assert s3.list_objects_v2(Bucket="data", Prefix="results/broken")["KeyCount"] == 0


@pytest.mark.parametrize(
    ("media_type", "form"), [("application/jsonlines", '{{"inputs": "{}"}}'), ("text/plain", "{}")]
)
def test_batch_transform_of_texts(tmp_path: Path, media_type: str, form: str) -> None:
    texts = ["good cat", "bad", "anna lives in paris"] * 20
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "all").write_text("".join(form.format(text) + "\n" for text in texts))
    job = {
        "TransformInput": {"ContentType": media_type, "SplitType": "Line"},
        "TransformOutput": {"AssembleWith": "Line"},
        "BatchStrategy": "MultiRecord",
    }
    option = settings(tmp_path, CreateTransformJob=job)
    paths = (f"--batch={tmp_path / 'texts'}", f"--output={tmp_path / 'vectors'}")
    with SageMakerEmulator(tmp_path, write_folder(tmp_path / "embedder"), *paths, option, ready=False) as emulator:
        assert emulator.wait() == 0, emulator.text()
    found = [json.loads(line) for line in (tmp_path / "vectors" / "all.out").read_text().splitlines()]
    np.testing.assert_allclose(found, [[mean_of(text)] for text in texts], rtol=1e-5)


# --- the commands of the page


def test_documented_batch_transform_runs(tmp_path: Path) -> None:
    (command,) = re.findall(r"^trident emulate sagemaker (.*--batch.*)$", PAGE, re.MULTILINE)
    model, *options = shlex.split(command)
    pixels = json.loads(request_body())["inputs"][0]["data"]
    rows = [",".join(map(str, [f"picture{n}", *np.array(pixels).ravel().tolist()])) for n in range(3)]
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "all.csv").write_text("\n".join(rows))
    places = {"pictures": str(tmp_path / "pictures"), "answers": str(tmp_path / "answers")}
    given = [
        f"{flag}={places.get(value, ROOT / value)}" for flag, _, value in (each.partition("=") for each in options)
    ]
    with SageMakerEmulator(tmp_path, ROOT / model, *given, ready=False) as emulator:
        assert emulator.wait() == 0, emulator.text()
    answers = (tmp_path / "answers" / "all.csv.out").read_text().splitlines()
    assert [each.split(",")[0] for each in answers] == ["picture0", "picture1", "picture2"]
    assert [len(each.split(",")) for each in answers] == [11, 11, 11]


def test_documented_settings_are_those_of_the_api() -> None:
    for path in re.findall(r"--settings[ =](\S+\.json)", PAGE):
        Hosting(read_settings_file(ROOT / path, OPERATIONS)).check(multi_model=False)
