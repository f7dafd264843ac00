"""The plans of `python -m deploy.sagemaker`, as a dry run prints them, and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.sagemaker.options import parser
from deploy.smoke_forms import Form
from tests.project import ROOT
from tests.unit.deploy.sagemaker.sagemaker_command import (
    ARCHIVE,
    ASYNC,
    BATCH,
    INSTANCE,
    MODEL,
    MULTI_MODEL,
    REAL_TIME,
    ROLE,
    SERVERLESS,
    Printed,
    dry_run,
    only,
    refusal,
    run,
)
from trident.tools.emulators.sagemaker.api_model import FREQUENCIES_S

AMI_535 = "al2-ami-sagemaker-inference-gpu-2"
TOPIC = "arn:aws:sns:us-east-1:123456789012:films"


def names(calls: list[Printed]) -> list[str]:
    return [call.name.partition(".")[2] for call in calls]


def config_of(*arguments: str) -> dict[str, Any]:
    return only(dry_run("create", "digits", *arguments), "sagemaker.CreateEndpointConfig")


@pytest.mark.slow
def test_dry_run_needs_neither_credentials_nor_a_region_nor_a_home(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.sagemaker", "create", "digits", *REAL_TIME, "--dry-run"]
    variables = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "PATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sagemaker.CreateModel {")


def test_names_depend_only_on_the_content() -> None:
    def made(*more: str) -> tuple[str, str]:
        calls = dry_run("create", "digits", *REAL_TIME, *more)
        return calls[0].parameters["ModelName"], calls[1].parameters["EndpointConfigName"]

    model, config = made()
    assert made("--tag=a=b", "--no-alarms", "--no-wait") == (model, config)
    assert made("--instance-count=2")[0] == model
    assert made("--instance-count=2")[1] != config
    other_model, other_config = made("--env=OMP_NUM_THREADS=1")
    assert (other_model != model, other_config != config) == (True, True)
    assert model.startswith("digits-")


def test_tags_are_on_every_resource_or_omitted() -> None:
    makes = ("Create", "Put")
    tagged = dry_run("create", "digits", *REAL_TIME, "--tag=team=vision")
    assert {str(call.parameters.get("Tags")) for call in tagged if call.name.partition(".")[2].startswith(makes)} == {
        "[{'Key': 'team', 'Value': 'vision'}]"
    }
    assert not [call for call in dry_run("create", "digits", *REAL_TIME) if "Tags" in call.parameters]


def test_plain_files_are_a_data_source_instead_of_a_url() -> None:
    calls = dry_run("create", "digits", *MODEL, "--model-data=s3://models/plain/", "--instance-type", INSTANCE)
    container = calls[0].parameters["PrimaryContainer"]
    assert "ModelDataUrl" not in container
    assert container["ModelDataSource"]["S3DataSource"] == {
        "S3Uri": "s3://models/plain/",
        "S3DataType": "S3Prefix",
        "CompressionType": "None",
    }


def test_asynchronous_endpoint_has_default_limits() -> None:
    calls = dry_run("create", "films", *ASYNC, "--env=SAGEMAKER_MODEL_SERVER_TIMEOUT=900", "--error-topic=" + TOPIC)
    environment = calls[0].parameters["PrimaryContainer"]["Environment"]
    assert environment == {"SAGEMAKER_MAX_REQUEST_SIZE": str(1 << 30), "SAGEMAKER_MODEL_SERVER_TIMEOUT": "900"}
    assert calls[1].parameters["AsyncInferenceConfig"]["OutputConfig"] == {
        "S3OutputPath": "s3://data/answers/",
        "NotificationConfig": {"ErrorTopic": TOPIC},
    }


def test_serverless_endpoint_has_memory_and_no_instances() -> None:
    (variant,) = config_of(*SERVERLESS, "--memory-mb=3072", "--provisioned-concurrency=2")["ProductionVariants"]
    assert variant["ServerlessConfig"] == {"MemorySizeInMB": 3072, "MaxConcurrency": 5, "ProvisionedConcurrency": 2}
    assert "InstanceType" not in variant


def test_capture_lists_text_types_but_not_binary_tensors() -> None:
    capture = config_of(*REAL_TIME, "--capture-to=s3://data/c/")
    assert capture["DataCaptureConfig"]["CaptureContentTypeHeader"] == {
        "CsvContentTypes": ["text/csv"],
        "JsonContentTypes": ["application/json", "application/jsonlines"],
    }


@pytest.mark.parametrize(
    ("options", "ami"),
    [
        (["--instance-type=ml.g5.xlarge"], "al2023-ami-sagemaker-inference-gpu-4-1"),
        (["--instance-type=ml.g4dn.xlarge", "--cuda=12"], "al2-ami-sagemaker-inference-gpu-3-1"),
        (["--instance-type=ml.p5.48xlarge", "--ami=al2-ami-sagemaker-inference-gpu-2"], AMI_535),
        (["--instance-type=ml.c6i.xlarge"], None),
    ],
)
def test_the_host_image_has_a_driver_for_the_image(options: list[str], ami: str | None) -> None:
    printed = run("create", "digits", *MODEL, "--model-data", ARCHIVE, *options, "--dry-run")
    assert (f'"InferenceAmiVersion": "{ami}"' in printed.out) == (ami is not None)
    chosen = ami if ami != AMI_535 else None
    assert printed.errors.startswith(f"host image {chosen}: ") if chosen else printed.errors == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--instance-type=ml.p3.2xlarge"], "older than Turing"),
        (["--instance-type=ml.p6-b200.48xlarge", "--cuda=12"], "Blackwell"),
    ],
)
def test_the_image_has_code_for_the_gpus(options: list[str], text: str) -> None:
    assert text in refusal("create", "films", *MODEL, "--model-data", ARCHIVE, *options)


def test_batch_transform_on_gpus_needs_the_image_with_cuda_12() -> None:
    batch = (*BATCH, "--instance-type=ml.g5.xlarge")
    assert "CUDA 13 needs driver 580.65.06, and --kind batch has up to 535" in refusal("create", "films", *batch)
    printed = run("create", "films", *batch, "--cuda=12", "--dry-run")
    assert '"TransformAmiVersion": "al2-ami-sagemaker-batch-gpu-535"' in printed.out
    assert printed.errors.startswith("host image al2-ami-sagemaker-batch-gpu-535: ml.g5.xlarge has GPUs")


def test_batch_transform_job_splits_and_assembles() -> None:
    calls = dry_run(
        "create", "nightly", *BATCH, "--split=RecordIO", "--assemble=None", "--content-type=application/x-npy"
    )
    assert names(calls) == ["CreateModel", "CreateTransformJob", "DescribeTransformJob"]
    job = calls[1].parameters
    assert job["TransformInput"]["SplitType"] == "RecordIO"
    assert job["TransformInput"]["ContentType"] == "application/x-npy"
    assert job["TransformOutput"] == {
        "S3OutputPath": "s3://data/out/",
        "AssembleWith": "None",
        "Accept": "application/x-npy",
    }
    assert job["BatchStrategy"] == "SingleRecord"
    assert only(dry_run("create", "nightly", *BATCH), "sagemaker.CreateTransformJob")["BatchStrategy"] == "MultiRecord"


def capacity(percent: int) -> dict[str, object]:
    return {"Type": "CAPACITY_PERCENT", "Value": percent}


@pytest.mark.parametrize(
    ("options", "routing"),
    [
        (["--shift=canary", "--step-percent=20"], {"Type": "CANARY", "CanarySize": capacity(20)}),
        (["--shift=linear", "--step-percent=25"], {"Type": "LINEAR", "LinearStepSize": capacity(25)}),
        (["--shift=all-at-once"], {"Type": "ALL_AT_ONCE"}),
    ],
)
def test_update_shifts_traffic_and_names_its_alarms(options: list[str], routing: dict[str, object]) -> None:
    calls = dry_run("update", "digits", *REAL_TIME, "--step-secs=120", *options)
    made = [call.parameters["AlarmName"] for call in calls if call.name == "cloudwatch.PutMetricAlarm"]
    deployment = only(calls, "sagemaker.UpdateEndpoint")["DeploymentConfig"]
    policy = deployment["BlueGreenUpdatePolicy"]
    assert policy["TrafficRoutingConfiguration"] == {"WaitIntervalInSeconds": 120, **routing}
    watching = [alarm["AlarmName"] for alarm in deployment["AutoRollbackConfiguration"]["Alarms"]]
    assert watching == ["digits-5xx", "digits-latency-p99"]
    assert set(watching) < set(made)


def test_update_waits_as_long_as_its_steps_may_take() -> None:
    calls = dry_run("update", "digits", *REAL_TIME, "--shift=linear", "--step-secs=900", "--wait-secs=60")
    longest = only(calls, "sagemaker.UpdateEndpoint")["DeploymentConfig"]["BlueGreenUpdatePolicy"]
    assert longest["MaximumExecutionTimeoutInSeconds"] == 10 * 900 + 300 + 1800
    assert (
        calls[-1].goal == f"until EndpointStatus is InService, at most {longest['MaximumExecutionTimeoutInSeconds']} s"
    )


def test_update_accepts_no_alarms_and_keep_instance_count() -> None:
    none = dry_run("update", "digits", *REAL_TIME, "--no-alarms")
    assert "AutoRollbackConfiguration" not in only(none, "sagemaker.UpdateEndpoint")["DeploymentConfig"]
    assert "PutMetricAlarm" not in names(none)
    assert "DeploymentConfig" not in only(dry_run("update", "seldom", *SERVERLESS), "sagemaker.UpdateEndpoint")
    kept = only(dry_run("update", "digits", *REAL_TIME, "--keep-instance-count"), "sagemaker.UpdateEndpoint")
    assert kept["RetainAllVariantProperties"] is True
    assert "RetainAllVariantProperties" not in only(dry_run("update", "digits", *REAL_TIME), "sagemaker.UpdateEndpoint")


@pytest.mark.parametrize(
    ("options", "dimension", "metric"),
    [
        ([], "DesiredInstanceCount", "SageMakerVariantInvocationsPerInstance"),
        (["--metric=concurrency"], "DesiredInstanceCount", "SageMakerVariantConcurrentRequestsPerModelHighResolution"),
        (["--kind=multi-model"], "DesiredInstanceCount", "SageMakerVariantInvocationsPerInstance"),
        (
            ["--kind=serverless", "--target=0.7"],
            "DesiredProvisionedConcurrency",
            "SageMakerVariantProvisionedConcurrencyUtilization",
        ),
    ],
)
def test_scaling_tracks_the_metrics_of_the_platform(options: list[str], dimension: str, metric: str) -> None:
    target, policy = dry_run("scale", "digits", "--min=1", "--max=4", "--target=70", *options)
    assert target.parameters["ResourceId"] == "endpoint/digits/variant/AllTraffic"
    assert (target.parameters["MinCapacity"], target.parameters["MaxCapacity"]) == (1, 4)
    assert {each.parameters["ScalableDimension"] for each in (target, policy)} == {f"sagemaker:variant:{dimension}"}
    tracking = policy.parameters["TargetTrackingScalingPolicyConfiguration"]
    assert tracking["PredefinedMetricSpecification"] == {"PredefinedMetricType": metric}


def test_asynchronous_endpoint_scales_by_its_backlog_and_from_zero() -> None:
    calls = dry_run("scale", "films", "--kind=async", "--min=0", "--max=2", "--target=5")
    assert names(calls) == ["RegisterScalableTarget", "PutScalingPolicy", "PutScalingPolicy", "PutMetricAlarm"]
    tracking = calls[1].parameters["TargetTrackingScalingPolicyConfiguration"]["CustomizedMetricSpecification"]
    assert tracking["MetricName"] == "ApproximateBacklogSizePerInstance"
    step = calls[2].parameters["StepScalingPolicyConfiguration"]
    assert (step["AdjustmentType"], step["Cooldown"]) == ("ChangeInCapacity", 300)
    alarm = calls[3].parameters
    assert (alarm["MetricName"], alarm["EvaluationPeriods"], alarm["Period"]) == ("HasBacklogWithoutCapacity", 2, 60)
    assert alarm["AlarmActions"] == ["<PolicyARN of PutScalingPolicy>"]
    assert len(dry_run("scale", "films", "--kind=async", "--min=1", "--max=2", "--target=5")) == 2


def test_smoke_test_sends_every_form_to_the_named_model() -> None:
    options = ("--kind=multi-model", "--target-model=digits.tar.gz", "--request=deploy/digits/6.json")
    calls = dry_run("smoke", "shelf", *options)
    types = [call.parameters["ContentType"].partition(";")[0] for call in calls]
    binary = "application/vnd.sagemaker-triton.binary+json"
    assert types == ["application/json", binary, "application/json", "text/csv"]
    assert {call.parameters["TargetModel"] for call in calls} == {"digits.tar.gz"}


def test_queue_gets_binary_tensors_only_on_request() -> None:
    """The content type of a queued response is undocumented, and reading binary tensors needs it."""
    calls = dry_run("smoke", "films", "--kind=async", "--request=deploy/digits/6.json")
    assert {call.name for call in calls} == {"sagemaker-runtime.InvokeEndpointAsync"}
    assert [call.parameters["Accept"] for call in calls] == ["application/json", "application/json", "text/csv"]
    assert len(dry_run("smoke", "films", "--kind=async", "--request=deploy/digits/6.json", "--form=binary")) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "a_b", *REAL_TIME], "'a_b' is not a valid name"),
        (["create", "a" * 53, *REAL_TIME], "has 53 characters"),
        (["create", "x", *REAL_TIME[:-1], "ml.c5.xlarg"], "did you mean ml.c5.xlarge?"),
        (["create", "x", *REAL_TIME, "--capture-to=data"], "does not match the pattern"),
        (
            ["create", "x", *REAL_TIME, "--role=arn:aws:iam::12:role/trident"],
            "ExecutionRoleArn is 'arn:aws:iam::12:role/trident'",
        ),
        (["create", "x", *REAL_TIME, "--env=LEVEL"], "it takes NAME=VALUE"),
        (["create", "x", *MODEL, "--model-data", ARCHIVE], "--kind real-time needs --instance-type"),
        (["create", "x", *MODEL, "--model-data=s3://m/x.zip", "--instance-type", INSTANCE], "ends with .tar.gz"),
        (["create", "x", *MULTI_MODEL, "--model-data", ARCHIVE], "ends with /"),
        (["create", "x", *SERVERLESS, "--model-data=s3://models/plain/"], "tar -C MODEL"),
        (["create", "x", *SERVERLESS, "--memory-mb=7168"], "it takes 1024 to 6144"),
        (["create", "x", *SERVERLESS, "--instance-type", INSTANCE], "give it --memory-mb"),
        (["create", "x", *ASYNC, "--output="], "needs --output"),
        (["create", "x", *BATCH, "--input="], "needs --input"),
        (["scale", "x", "--max=2"], "it must be above 0"),
        (["scale", "x", "--kind=serverless", "--max=2", "--target=70"], "such as 0.7"),
        (["smoke", "x", "--request=deploy/models"], "deploy/models: Is a directory"),
        (["smoke", "x", "--request=pyproject.toml"], "is not a v2 request"),
        (["smoke", "x", "--request=deploy/digits/6.json", "--kind=multi-model"], "--target-model"),
    ],
)
def test_invalid_settings_are_refused_with_a_cure(arguments: list[str], text: str) -> None:
    assert text in refusal(*arguments)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SAGEMAKER_TRITON_LOG_VERBOS=true", "did you mean SAGEMAKER_TRITON_LOG_VERBOSE?"),
        ("SAGEMAKER_MODEL_SERVER_TIMOUT=1", "did you mean SAGEMAKER_MODEL_SERVER_TIMEOUT?"),
        ("TRIDENT_HTTP_WORKER=1", "did you mean TRIDENT_HTTP_WORKERS?"),
        ("SAGEMAKER_TRITON_LOG_INFO=maybe", "--log-info takes true|false"),
        ("SAGEMAKER_TRITON_ADDITIONAL_ARGS=--log-werbose=1", "did you mean --log-verbose?"),
        ("TRIDENT_HTTP_THREAD_COUNT=none", "TRIDENT_HTTP_THREAD_COUNT"),
        ("SAGEMAKER_MULTI_MODEL=true", "--kind multi-model"),
        ("SAGEMAKER_BATCH=true", "--kind batch"),
        ("LONG=" + "x" * 1025, "it takes 0 to 1024"),
    ],
)
def test_variable_that_the_server_would_refuse_is_refused(variable: str, text: str) -> None:
    assert text in refusal("create", "x", *REAL_TIME, f"--env={variable}")


def test_variables_are_limited_in_number_and_checked_with_our_prefix() -> None:
    assert "it takes 0 to 100" in refusal("create", "x", *REAL_TIME, *(f"--env=X{n}=1" for n in range(101)))
    calls = dry_run("create", "x", *REAL_TIME, "--env=OMP_NUM_THREADS=4", "--env=TRIDENT_LOG_VERBOSE=1")
    environment = calls[0].parameters["PrimaryContainer"]["Environment"]
    assert environment == {"OMP_NUM_THREADS": "4", "TRIDENT_LOG_VERBOSE": "1"}


# --- metrics


@pytest.mark.parametrize(
    ("options", "config", "scraped", "variables"),
    [
        ((), {"EnableDetailedObservability": True, "MetricPublishFrequencyInSeconds": 60}, "/metrics", {}),
        (
            ("--metrics=embedded",),
            {"EnableDetailedObservability": False},
            None,
            {"TRIDENT_METRICS_LOG": "emf", "TRIDENT_METRICS_LOG_DIMENSION": "endpoint=x"},
        ),
        (("--metrics=off",), {"EnableDetailedObservability": False}, None, {}),
        (("--kind=serverless", "--instance-type", ""), None, None, {}),
    ],
)
def test_metrics_are_scraped_or_embedded_and_never_both(
    options: tuple[str, ...], config: dict[str, Any] | None, scraped: str | None, variables: dict[str, str]
) -> None:
    calls = dry_run("create", "x", *REAL_TIME, *options)
    assert only(calls, "sagemaker.CreateEndpointConfig").get("MetricsConfig") == config
    container = only(calls, "sagemaker.CreateModel")["PrimaryContainer"]
    endpoints = container.get("ContainerMetricsConfig", {}).get("MetricsEndpoints", [])
    assert [each["MetricsEndpointPath"] for each in endpoints] == ([scraped] if scraped else [])
    assert container.get("Environment", {}) == variables


def test_embedded_metrics_of_a_scraped_endpoint_are_refused() -> None:
    assert "paid twice" in refusal("create", "x", *REAL_TIME, "--env=TRIDENT_METRICS_LOG=emf")
    assert dry_run("create", "x", *BATCH, "--env=TRIDENT_METRICS_LOG=emf")


# --- parameters of the API that have no option


def settings_file(folder: Path, **operations: Any) -> str:
    path = folder / "settings.json"
    path.write_text(json.dumps(operations))
    return f"--settings={path}"


NEW_MEMBERS = {
    "EnableSSMAccess": True,
    "CoreDumpConfig": {"DestinationS3Uri": "s3://data/dumps"},
    "AcceleratorPartitionLayouts": [{"AcceleratorPartitionTypes": ["mig-3g.40gb"]}],
}


def test_settings_file_passes_every_member_of_the_api(tmp_path: Path) -> None:
    traffic = {"MaxInvocationsPerSecondPerInstance": 100, "MaxCrossRegionPercentPerEndpoint": 20}
    given = {"ProductionVariants": [NEW_MEMBERS], "CrossRegionTrafficConfig": traffic}
    config = only(
        dry_run("create", "x", *REAL_TIME, settings_file(tmp_path, CreateEndpointConfig=given)),
        "sagemaker.CreateEndpointConfig",
    )
    without = only(dry_run("create", "x", *REAL_TIME), "sagemaker.CreateEndpointConfig")
    assert config["ProductionVariants"] == [{**without["ProductionVariants"][0], **NEW_MEMBERS}]
    assert config["CrossRegionTrafficConfig"] == traffic
    assert config["EndpointConfigName"] != without["EndpointConfigName"]


@pytest.mark.parametrize(
    ("operation", "given", "text"),
    [
        ("CreateEndpointConfig", {"ProductionVariants": [{"EnableSSMAccess": "yes"}]}, "EnableSSMAccess"),
        ("CreateEndpointConfig", {"MetricsConfig": {"MetricPublishFrequencyInSeconds": 5}}, "10, 30, 60, 120"),
        ("CreateModel", {"ModelName": "a_b"}, "does not match the pattern"),
        ("CreateModel", {"PrimaryContainer": {"Mode": "Several"}}, "unknown value 'Several'"),
    ],
)
def test_settings_file_is_checked_against_the_sdks_model(
    tmp_path: Path, operation: str, given: dict[str, Any], text: str
) -> None:
    assert text in refusal("create", "x", *REAL_TIME, settings_file(tmp_path, **{operation: given}))


def test_settings_file_of_other_operations_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("create", "x", *REAL_TIME, settings_file(tmp_path, CreateDomain={}))
    assert "names 'CreateDomain'; it takes CreateModel" in capsys.readouterr().err


def test_inference_component_has_the_model_and_the_endpoint_the_role(tmp_path: Path) -> None:
    needs = {"MinMemoryRequiredInMb": 1024, "NumberOfCpuCoresRequired": 1}
    specification = {"ComputeResourceRequirements": needs, "SchedulingConfig": {"PlacementStrategy": "SPREAD"}}
    option = settings_file(tmp_path, CreateInferenceComponent={"Specification": specification})
    calls = dry_run("create", "x", *REAL_TIME, option)
    component = only(calls, "sagemaker.CreateInferenceComponent")
    model = only(calls, "sagemaker.CreateModel")["ModelName"]
    assert component["Specification"] == {"ModelName": model, **specification}
    config = only(calls, "sagemaker.CreateEndpointConfig")
    assert (config["ExecutionRoleArn"], "ModelName" in config["ProductionVariants"][0]) == (ROLE, False)
    assert calls[-1].goal.startswith("until InferenceComponentStatus is InService")
    names = [call.name.partition(".")[2] for call in dry_run("delete", "x", option)]
    assert names.index("DeleteInferenceComponent") < names.index("DeleteEndpoint")


def test_help_names_every_form_and_interval() -> None:
    """The options repeat them, as they import nothing."""
    given = parser().parse_args(["smoke", "x", *(f"--form={form}" for form in Form)])
    assert given.form == list(Form)
    for seconds in FREQUENCIES_S:
        assert parser().parse_args(["create", "x", *REAL_TIME, f"--metrics-secs={seconds}"]).metrics_secs == seconds
    with pytest.raises(SystemExit):
        parser().parse_args(["create", "x", *REAL_TIME, "--metrics-secs=11"])
