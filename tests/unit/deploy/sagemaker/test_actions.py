"""The actions, with boto3's real clients and botocore's Stubber in place of AWS.

It checks the parameters of every call against the API, and its order.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from deploy.sagemaker.aws import POLL_S, Aws, DeployError
from deploy.sagemaker.options import parser
from deploy.sagemaker.scale import AUTOSCALING as SERVICE
from tests.unit.deploy.sagemaker.sagemaker_command import REAL_TIME, dry_run, only

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ARN = "arn:aws:sagemaker:us-east-1:123456789012:endpoint/digits"
OLD = "digits-0123456789"
OLD_MODEL = "digits-aaaaaaaaaa"


Arguments = tuple[str, ...]


def parameters(arguments: Arguments, operation: str) -> dict[str, Any]:
    return only(dry_run(*arguments), f"sagemaker.{operation}")


def endpoint(status: str, config: str, reason: str = "") -> dict[str, Any]:
    """An answer to DescribeEndpoint."""
    found = {
        "EndpointName": "digits",
        "EndpointArn": ARN,
        "EndpointConfigName": config,
        "EndpointStatus": status,
        "CreationTime": NOW,
        "LastModifiedTime": NOW,
    }
    return {**found, **({"FailureReason": reason} if reason else {})}


def config_of(model: str) -> dict[str, Any]:
    """An answer to DescribeEndpointConfig for the old configuration."""
    arn = ARN.replace("endpoint/", "endpoint-config/")
    variants = [{"VariantName": "AllTraffic", "ModelName": model}]
    return {"EndpointConfigName": OLD, "EndpointConfigArn": arn, "ProductionVariants": variants, "CreationTime": NOW}


class Stubbed:
    """Clients that return prepared answers in order; a test must use all of them. Time passes only in pauses."""

    def __init__(self, clients: dict[str, Any]) -> None:
        self._stubbers = {service: Stubber(client) for service, client in clients.items()}
        self._out = io.StringIO()
        self._now = 0.0
        self._aws = Aws(clients.__getitem__, self._out, pause=self._pass_time, clock=lambda: self._now)

    def __enter__(self) -> Stubbed:
        for stubber in self._stubbers.values():
            stubber.activate()
        return self

    def __exit__(self, *_: object) -> None:
        for stubber in self._stubbers.values():
            stubber.deactivate()

    def answer(self, operation: str, answer: dict[str, Any] | None = None, service: str = "sagemaker") -> None:
        self._stubbers[service].add_response(operation, answer or {})

    def expect(self, operation: str, expected: dict[str, Any], answer: dict[str, Any] | None = None) -> None:
        self._stubbers["sagemaker"].add_response(operation, answer or {}, expected)

    def refuse(self, operation: str, code: str, message: str, service: str = "sagemaker") -> None:
        self._stubbers[service].add_client_error(operation, code, message)

    def run(self, arguments: Arguments) -> int:
        given = parser().parse_args(arguments)
        getattr(import_module(f"deploy.sagemaker.{given.action}"), given.action)(self._aws, given)
        self.assert_all_was_asked()
        return self._aws.failures

    def assert_all_was_asked(self) -> None:
        for stubber in self._stubbers.values():
            stubber.assert_no_pending_responses()

    @property
    def lines(self) -> list[str]:
        return self._out.getvalue().splitlines()

    def _pass_time(self, seconds: float) -> None:
        assert seconds == POLL_S
        self._now += seconds


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Any]]:
    session = boto3.session.Session("any", "any", region_name="us-east-1")
    made = {service: session.client(service) for service in ("sagemaker", "cloudwatch", SERVICE)}
    yield made
    for client in made.values():
        client.close()


@pytest.fixture
def aws(clients: dict[str, Any]) -> Iterator[Stubbed]:
    with Stubbed(clients) as stubbed:
        yield stubbed


def answer_creation(aws: Stubbed) -> None:
    aws.answer("create_model", {"ModelArn": ARN})
    aws.answer("create_endpoint_config", {"EndpointConfigArn": ARN})
    aws.answer("create_endpoint", {"EndpointArn": ARN})


CREATE = ("create", "digits", *REAL_TIME, "--no-alarms", "--wait-secs=60")
CREATED = parameters(CREATE, "CreateEndpoint")["EndpointConfigName"]
UPDATE = ("update", "digits", *REAL_TIME, "--no-alarms")


def test_wait_prints_each_state_of_the_endpoint_once(aws: Stubbed) -> None:
    answer_creation(aws)
    for status in ("Creating", "Creating", "InService"):
        aws.answer("describe_endpoint", endpoint(status, CREATED))
    assert aws.run(CREATE) == 0
    assert aws.lines[-3:] == ["CreateEndpoint digits: done", "digits: Creating", "digits: InService"]


def test_failure_of_an_endpoint_has_its_reason(aws: Stubbed) -> None:
    answer_creation(aws)
    aws.answer("describe_endpoint", endpoint("Creating", CREATED))
    aws.answer("describe_endpoint", endpoint("Failed", CREATED, "the container did not pass the ping check"))
    with pytest.raises(DeployError, match="is Failed: the container did not pass the ping check"):
        aws.run(CREATE)


def test_wait_ends_at_its_limit(aws: Stubbed) -> None:
    answer_creation(aws)
    for _ in range(7):
        aws.answer("describe_endpoint", endpoint("Creating", CREATED))
    with pytest.raises(DeployError, match="is Creating after 60 s") as raised:
        aws.run(CREATE)
    assert "--wait-secs" in raised.value.hint
    aws.assert_all_was_asked()


def test_existing_resource_with_the_same_content_is_used(aws: Stubbed) -> None:
    aws.refuse("create_model", "ValidationException", 'Cannot create already existing model "arn".')
    aws.refuse("create_endpoint_config", "ValidationException", "Cannot create already existing endpoint configuration")
    aws.answer("create_endpoint", {"EndpointArn": ARN})
    aws.answer("describe_endpoint", endpoint("InService", CREATED))
    assert aws.run(CREATE) == 0
    assert [line.partition(": ")[2] for line in aws.lines[:2]] == ["exists already, with the same content"] * 2


def test_create_of_an_existing_endpoint_hints_at_update(aws: Stubbed) -> None:
    aws.answer("create_model", {"ModelArn": ARN})
    aws.answer("create_endpoint_config", {"EndpointConfigArn": ARN})
    aws.refuse("create_endpoint", "ValidationException", 'Cannot create already existing endpoint "arn".')
    with pytest.raises(DeployError, match="already existing endpoint") as raised:
        aws.run(CREATE)
    assert "update" in raised.value.hint


def test_refusal_ends_the_plan_and_names_the_permissions(aws: Stubbed) -> None:
    aws.refuse("create_model", "AccessDeniedException", "User is not authorized to perform: iam:PassRole")
    with pytest.raises(DeployError, match=r"^sagemaker\.CreateModel: AccessDeniedException: .*PassRole") as raised:
        aws.run(CREATE)
    assert "sagemaker.md" in raised.value.hint


def test_update_creates_everything_before_it_shifts(aws: Stubbed) -> None:
    new = parameters(UPDATE, "UpdateEndpoint")
    aws.answer("describe_endpoint", endpoint("Updating", "from-somebody-else"))
    aws.answer("describe_endpoint", endpoint("InService", OLD))
    aws.expect("create_model", parameters(UPDATE, "CreateModel"), {"ModelArn": ARN})
    aws.expect("create_endpoint_config", parameters(UPDATE, "CreateEndpointConfig"), {"EndpointConfigArn": ARN})
    aws.expect("update_endpoint", new, {"EndpointArn": ARN})
    aws.answer("describe_endpoint", endpoint("Updating", OLD))
    aws.answer("describe_endpoint", endpoint("InService", new["EndpointConfigName"]))
    assert aws.run(UPDATE) == 0


def test_rollback_is_a_failure(aws: Stubbed) -> None:
    aws.answer("describe_endpoint", endpoint("InService", OLD))
    aws.answer("create_model", {"ModelArn": ARN})
    aws.answer("create_endpoint_config", {"EndpointConfigArn": ARN})
    aws.answer("update_endpoint", {"EndpointArn": ARN})
    aws.answer("describe_endpoint", endpoint("RollingBack", OLD))
    aws.answer("describe_endpoint", endpoint("InService", OLD, "alarm digits-5xx"))
    with pytest.raises(DeployError, match=rf"is {OLD}, not .*: it was rolled back: alarm digits-5xx"):
        aws.run(UPDATE)


def test_update_without_a_change_makes_no_calls(aws: Stubbed) -> None:
    same = parameters(UPDATE, "UpdateEndpoint")["EndpointConfigName"]
    aws.answer("describe_endpoint", endpoint("InService", same))
    with pytest.raises(DeployError, match="nothing to update") as raised:
        aws.run(UPDATE)
    assert "digest" in raised.value.hint


@pytest.mark.parametrize(("is_same_model", "removes_model"), [(False, True), (True, False)])
def test_update_removes_the_previous_resources_but_not_shared_ones(
    aws: Stubbed, is_same_model: bool, removes_model: bool
) -> None:
    made = ("update", "digits", *REAL_TIME, "--no-alarms", "--delete-previous")
    model = parameters(made, "CreateModel")["ModelName"]
    aws.answer("describe_endpoint", endpoint("InService", OLD))
    aws.expect(
        "describe_endpoint_config", {"EndpointConfigName": OLD}, config_of(model if is_same_model else OLD_MODEL)
    )
    aws.answer("create_model", {"ModelArn": ARN})
    aws.answer("create_endpoint_config", {"EndpointConfigArn": ARN})
    aws.answer("update_endpoint", {"EndpointArn": ARN})
    aws.answer("describe_endpoint", endpoint("InService", parameters(made, "UpdateEndpoint")["EndpointConfigName"]))
    aws.expect("delete_endpoint_config", {"EndpointConfigName": OLD})
    if removes_model:
        aws.expect("delete_model", {"ModelName": OLD_MODEL})
    assert aws.run(made) == 0


def test_delete_continues_after_failures_and_reports_them(aws: Stubbed) -> None:
    aws.refuse("describe_scalable_targets", "AccessDeniedException", "no", SERVICE)
    aws.refuse("describe_alarms", "AccessDenied", "no", "cloudwatch")
    aws.answer("list_transform_jobs", {"TransformJobSummaries": []})
    aws.refuse("delete_endpoint", "ValidationException", 'Could not find endpoint "arn".')
    aws.refuse("describe_endpoint", "ValidationException", 'Could not find endpoint "arn".')
    aws.answer("list_endpoint_configs", {"EndpointConfigs": []})
    models = [{"ModelName": OLD_MODEL, "ModelArn": ARN, "CreationTime": NOW}]
    aws.answer("list_models", {"Models": models})
    aws.refuse("delete_model", "AccessDeniedException", "not this one")
    assert aws.run(("delete", "digits")) == 3
    assert "DeleteEndpoint digits: does not exist" in aws.lines
    assert "failed: sagemaker.DeleteModel: AccessDeniedException: not this one" in aws.lines


def test_endpoint_that_stays_keeps_its_configuration(aws: Stubbed) -> None:
    target = {"ServiceNamespace": "sagemaker", "ResourceId": "endpoint/digits/variant/AllTraffic", "MinCapacity": 1}
    target |= {"ScalableDimension": "sagemaker:variant:DesiredInstanceCount", "MaxCapacity": 2, "RoleARN": "arn"}
    aws.answer("describe_scalable_targets", {"ScalableTargets": [{**target, "CreationTime": NOW}]}, SERVICE)
    aws.answer("deregister_scalable_target", {}, SERVICE)
    aws.answer("describe_alarms", {"MetricAlarms": [{"AlarmName": "digits-5xx"}]}, "cloudwatch")
    aws.answer("delete_alarms", {}, "cloudwatch")
    aws.answer("list_transform_jobs", {"TransformJobSummaries": []})
    aws.refuse("delete_endpoint", "AccessDeniedException", "no")
    aws.answer("describe_endpoint", endpoint("InService", OLD))
    with pytest.raises(DeployError, match="EndpointStatus is InService"):
        aws.run(("delete", "digits"))
    aws.assert_all_was_asked()
