"""deploy/sagemaker/cloudformation.yaml: cfn-lint accepts it, and it makes the same deployment as the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.sagemaker.create import CSV_TYPES, JSON_TYPES, alarms, container_environment
from deploy.sagemaker.options import Kind
from deploy.sagemaker.scale import backlog_alarm
from tests.project import ROOT
from tests.unit.deploy.sagemaker.sagemaker_command import ASYNC, REAL_TIME, dry_run, only
from trident.tools.emulators.sagemaker.api_model import FREQUENCIES_S

pytestmark = pytest.mark.slow

TEMPLATE = ROOT / "deploy" / "sagemaker" / "cloudformation.yaml"
NAME = "digits"
# The command's defaults for the parameters of the template.
DEFAULTS = {"ErrorsPerMinute": 5, "LatencyMicroseconds": 1000000, "EndpointName": NAME}


class Loader(yaml.SafeLoader):
    """The long form of a tag: `!Ref X` is {"Ref": X}."""


def _function(loader: Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {name: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


Loader.add_multi_constructor("!", _function)
DOCUMENT: dict[str, Any] = yaml.load(TEMPLATE.read_text(), Loader)


def resource(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = DOCUMENT["Resources"][name]["Properties"]
    return properties


def choices(value: Any) -> list[Any]:
    """The possible values of a value: both sides of an If, nothing for AWS::NoValue."""
    if isinstance(value, dict) and "Fn::If" in value:
        return [found for side in value["Fn::If"][1:] for found in choices(side)]
    if isinstance(value, dict) and "Fn::Sub" in value:
        return [settled(value)]
    return [] if value == {"Ref": "AWS::NoValue"} else [value]


def settled(value: Any) -> Any:
    """A value with the defaults of the parameters."""
    if isinstance(value, dict) and set(value) == {"Ref"}:
        return DEFAULTS.get(value["Ref"], value)
    if isinstance(value, dict) and set(value) == {"Fn::Sub"}:
        return value["Fn::Sub"].replace("${EndpointName}", NAME)
    if isinstance(value, dict):
        return {name: settled(member) for name, member in value.items()}
    return [settled(member) for member in value] if isinstance(value, list) else value


def test_cfn_lint_accepts_the_template() -> None:
    command = [str(Path(sys.executable).with_name("cfn-lint")), "--regions", "us-east-1", "--template", str(TEMPLATE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_server_knows_every_variable_and_value() -> None:
    environment = resource("Model")["PrimaryContainer"]["Environment"]
    assert environment
    for name, value in environment.items():
        texts = [text for text in choices(value) if isinstance(text, str)]
        referred = [DOCUMENT["Parameters"][each["Ref"]] for each in choices(value) if isinstance(each, dict)]
        texts += [text for parameter in referred for text in parameter.get("AllowedValues", [parameter["Default"]])]
        assert texts
        for text in texts:
            assert container_environment(Kind.REAL_TIME, {name: text}) == {name: text}


def test_asynchronous_container_has_the_commands_limits() -> None:
    environment = resource("Model")["PrimaryContainer"]["Environment"]
    given = {name: choices(environment[name])[0] for name in container_environment(Kind.ASYNC, {})}
    assert given == container_environment(Kind.ASYNC, {})


def test_alarms_are_those_of_the_command() -> None:
    made = {alarm["AlarmName"]: alarm for alarm in alarms(NAME, Kind.REAL_TIME, 5, 1000)}
    backlog = backlog_alarm(NAME, [])
    made[backlog["AlarmName"]] = backlog
    # Each tells what it means in its own words, and whom in its own way.
    apart = {"AlarmDescription", "AlarmActions", "OKActions"}
    for name in ("ServerErrors", "Latency", "BacklogWithoutCapacity"):
        alarm = settled(resource(name))
        expected = made[alarm["AlarmName"]]
        assert {key: alarm[key] for key in alarm.keys() - apart} == {
            key: expected[key] for key in expected.keys() - apart
        }


def test_scaling_is_that_of_the_command() -> None:
    policies = {
        "RequestScaling": ("--min=1", "--max=2", "--target=1000"),
        "BacklogScaling": ("--kind=async", "--min=1", "--max=2", "--target=1000"),
    }
    for name, arguments in policies.items():
        expected = only(dry_run("scale", NAME, *arguments), "application-autoscaling.PutScalingPolicy")
        key = "TargetTrackingScalingPolicyConfiguration"
        assert settled(resource(name))[key] == {**expected[key], "TargetValue": {"Ref": "ScalingTarget"}}
        assert settled(resource(name))["PolicyName"] == expected["PolicyName"]
    from_zero = dry_run("scale", NAME, "--kind=async", "--min=0", "--max=2", "--target=1")[2].parameters
    assert resource("FromZeroScaling")["StepScalingPolicyConfiguration"] == from_zero["StepScalingPolicyConfiguration"]


def test_updates_shift_and_roll_back_as_with_the_command() -> None:
    update = only(dry_run("update", NAME, *REAL_TIME, "--keep-instance-count"), "sagemaker.UpdateEndpoint")
    endpoint = resource("Endpoint")
    expected = update["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    policy = endpoint["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    assert policy["TrafficRoutingConfiguration"] == expected["TrafficRoutingConfiguration"]
    assert policy["TerminationWaitInSeconds"] == expected["TerminationWaitInSeconds"]
    assert endpoint["RetainAllVariantProperties"] == update["RetainAllVariantProperties"]
    assert endpoint["ExcludeRetainedVariantProperties"] == update["ExcludeRetainedVariantProperties"]
    watching = endpoint["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    names = [settled(resource(alarm["AlarmName"]["Ref"])["AlarmName"]) for alarm in watching]
    assert names == [each["AlarmName"] for each in update["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]]


def test_metrics_are_those_of_the_command() -> None:
    config, environment = (
        resource("EndpointConfig")["MetricsConfig"],
        resource("Model")["PrimaryContainer"]["Environment"],
    )
    chosen = config["EnableDetailedObservability"]["Fn::If"]
    assert chosen == ["IsScraped", True, False]
    for side, metrics in enumerate(("scraped", "embedded"), 1):
        calls = dry_run("create", NAME, *REAL_TIME, "--metrics", metrics)
        expected = only(calls, "sagemaker.CreateEndpointConfig")["MetricsConfig"]
        assert chosen[side] == expected["EnableDetailedObservability"]
    variables = only(calls, "sagemaker.CreateModel")["PrimaryContainer"]["Environment"]
    assert {name: choices(environment[name]) for name in variables} == {
        name: [each] for name, each in variables.items()
    }
    assert DOCUMENT["Parameters"]["MetricsSeconds"]["AllowedValues"] == list(FREQUENCIES_S)


def test_captured_types_and_the_variant_are_those_of_the_command() -> None:
    config = resource("EndpointConfig")
    (capture,) = choices(config["DataCaptureConfig"])
    assert capture["CaptureContentTypeHeader"] == {
        "CsvContentTypes": list(CSV_TYPES),
        "JsonContentTypes": list(JSON_TYPES),
    }
    (variant,) = config["ProductionVariants"]
    on_gpus = dry_run("create", NAME, *ASYNC, "--instance-type=ml.g5.xlarge")
    command = only(on_gpus, "sagemaker.CreateEndpointConfig")["ProductionVariants"][0]
    assert variant.keys() == command.keys()
    assert variant["VariantName"] == command["VariantName"]
    assert choices(variant["InferenceAmiVersion"]) == [{"Ref": "HostImage"}, command["InferenceAmiVersion"]]


def test_no_permission_is_for_all_resources() -> None:
    """Except for actions that have no resource."""
    statements = [
        statement
        for policy in resource("Role")["Policies"]
        for chosen in choices(policy)
        for each in chosen["PolicyDocument"]["Statement"]
        for statement in choices(each)
    ]
    assert len(statements) == 11
    for statement in statements:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        assert not [action for action in actions if "*" in action]
        if statement["Resource"] == "*":
            assert actions in (["ecr:GetAuthorizationToken"], ["cloudwatch:PutMetricData"])
