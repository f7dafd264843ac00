"""`create`: a model and an endpoint, or a batch transform job.

Models and endpoint configurations are immutable: a change makes a new one, whose name ends with a hash of its content.
Source: docs/spec/deploy.md sections 4 and 8, docs/spec/sagemaker.md sections A1, A4, A6, A9 and B1.
"""

from __future__ import annotations

import difflib
import re
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from deploy.sagemaker.aws import (
    SAGEMAKER,
    VARIANT,
    Aws,
    BadSettings,
    DeployError,
    because,
    content_name,
    given_values,
    pairs,
    tagged,
)
from deploy.sagemaker.options import Kind
from trident.adapters.common.options import BadOption
from trident.adapters.sagemaker.platform import (
    BATCH,
    BIND_TO_PORT,
    EFFECTIVE_VARIABLES,
    MULTI_MODEL,
    PREFIX,
    SAFE_PORT_RANGE,
    WITHOUT_EFFECT,
)
from trident.app.settings.reading import read_settings
from trident.core.cuda import LEAST_DRIVERS
from trident.tools.emulators.sagemaker.api_model import merged

CONFIG = "EndpointConfigName"
CHANGING = ("Creating", "Updating", "SystemUpdating", "RollingBack")
Parameters = dict[str, Any]


def create(aws: Aws, given: Namespace) -> None:
    model = model_parameters(given)
    if given.kind is Kind.BATCH:
        _transform(aws, given, model)
        return
    config = config_parameters(given, model["ModelName"])
    make(aws, model, config)
    names = {"EndpointName": given.name, CONFIG: config[CONFIG], **tagged(given.tag)}
    aws.call(SAGEMAKER, "CreateEndpoint", merged(names, given.settings.get("CreateEndpoint", {})))
    put_alarms(aws, given)
    if not given.no_wait:
        wait_in_service(aws, given.name, config[CONFIG], given.wait_secs)
    if "CreateInferenceComponent" in given.settings:
        _create_component(aws, given, model["ModelName"])


def make(aws: Aws, model: Parameters, config: Parameters) -> None:
    aws.call(SAGEMAKER, "CreateModel", model, may_exist=True)
    aws.call(SAGEMAKER, "CreateEndpointConfig", config, may_exist=True)


def wait_in_service(aws: Aws, endpoint: str, config: str, limit_s: float) -> None:
    """Wait for the configuration. A rollback also ends in service, but with the previous configuration."""
    found = aws.wait("DescribeEndpoint", {"EndpointName": endpoint}, "EndpointStatus", "InService", CHANGING, limit_s)
    if found.get(CONFIG, config) != config:
        raise DeployError(f"{endpoint}: {CONFIG} is {found[CONFIG]}, not {config}: it was rolled back{because(found)}")


# The model


def model_parameters(given: Namespace) -> Parameters:
    """The model: an image, the place of its files, and the variables of the container."""
    environment = container_environment(given.kind, {**_metrics_variables(given), **pairs("--env", given.env)})
    container = {"Image": given.image, **_model_files(given), **given_values(Environment=environment)}
    if _is_scraped(given):
        endpoint = {"MetricsEndpointPath": "/metrics", "MetricPublishFrequencyInSeconds": given.metrics_secs}
        container["ContainerMetricsConfig"] = {"MetricsEndpoints": [endpoint]}
    content = {"PrimaryContainer": container, "ExecutionRoleArn": given.role}
    content = merged(content, given.settings.get("CreateModel", {}))
    return {"ModelName": content_name(given.name, content), **content, **tagged(given.tag)}


# Only an asynchronous endpoint accepts bodies of up to 1 GiB and calls of up to an hour.
_ASYNC = {"SAGEMAKER_MAX_REQUEST_SIZE": str(1 << 30), "SAGEMAKER_MODEL_SERVER_TIMEOUT": "3600"}
_OF_THE_PLATFORM = {
    MULTI_MODEL: "it is set for --kind multi-model",
    BATCH: "it is set for --kind batch",
    BIND_TO_PORT: "it is set if containers share a host",
    SAFE_PORT_RANGE: "it is set if containers share a host",
}


def container_environment(kind: Kind, given: Mapping[str, str]) -> dict[str, str]:
    """The variables for the container of an endpoint: `given`, and those that its kind needs.

    Raises BadSettings for an unknown variable with the platform's prefix, one that the platform sets itself, and a
    value that the server would refuse. Its settings check values in multi-model mode, which needs no model on the disk.
    """
    found = {**(_ASYNC if kind is Kind.ASYNC else {}), **given}
    # Without the prefix, which makes all names similar.
    known = {each.removeprefix(PREFIX): each for each in (*EFFECTIVE_VARIABLES, *WITHOUT_EFFECT)}
    for name in found:
        if name in _OF_THE_PLATFORM:
            raise BadSettings(f"the platform sets the variable {name} itself: {_OF_THE_PLATFORM[name]}")
        if name.startswith(PREFIX) and name not in known.values():
            nearest = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            raise BadSettings(
                f"unknown variable {name}" + (f"; did you mean {known[nearest[0]]}?" if nearest else ""),
                hint="docs/sagemaker.md lists the variables that the server reads",
            )
    try:
        read_settings([], {**found, MULTI_MODEL: "true"})
    except BadOption as error:
        raise BadSettings(f"the server would not start with these variables: {error}") from None
    return found


_METRICS_LOG = "TRIDENT_METRICS_LOG"


def _is_scraped(given: Namespace) -> bool:
    """True if the configuration has the platform scrape the metrics. It scrapes no batch transform job, and
    whether it scrapes serverless endpoints is left to its default."""
    return given.metrics == "scraped" and given.kind not in (Kind.BATCH, Kind.SERVERLESS)


def _metrics_variables(given: Namespace) -> dict[str, str]:
    if given.metrics == "embedded":
        return {_METRICS_LOG: "emf", f"{_METRICS_LOG}_DIMENSION": f"endpoint={given.name}"}
    if given.kind is not Kind.BATCH and pairs("--env", given.env).get(_METRICS_LOG) == "emf":
        raise BadSettings(
            f"{_METRICS_LOG}=emf with --metrics {given.metrics}: the platform may scrape the same metrics, and they "
            "would be paid twice",
            hint="--metrics embedded sets the variable and turns the scraping off",
        )
    return {}


def _model_files(given: Namespace) -> Parameters:
    """An archive, the plain files below a prefix, or, for a multi-model endpoint, the archives below it."""
    data: str = given.model_data
    if given.kind is Kind.MULTI_MODEL:
        if not data.endswith("/"):
            raise BadSettings(
                f"--model-data is '{data}'", hint="a multi-model endpoint needs a prefix that ends with /"
            )
        return {"Mode": "MultiModel", "ModelDataUrl": data, "MultiModelConfig": {"ModelCacheSetting": "Enabled"}}
    if data.endswith(".tar.gz"):
        return {"Mode": "SingleModel", "ModelDataUrl": data}
    if not data.endswith("/"):
        raise BadSettings(
            f"--model-data is '{data}'", hint="an archive ends with .tar.gz, a prefix of plain files with /"
        )
    if given.kind in (Kind.SERVERLESS, Kind.BATCH):
        raise BadSettings(
            f"--kind {given.kind} does not accept plain files", hint="pack them: tar -C MODEL -czf model.tar.gz ."
        )
    source = {"S3Uri": data, "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"Mode": "SingleModel", "ModelDataSource": {"S3DataSource": source}}


# The endpoint configuration

# The listed types are captured as text, all others as base64. Those are npy, npz and the binary tensors, whose type
# contains a length and could not match a list.
CSV_TYPES = ("text/csv",)
JSON_TYPES = ("application/json", "application/jsonlines")


def config_parameters(given: Namespace, model_name: str) -> Parameters:
    """The endpoint configuration: one variant of the model, data capture, and the queue of an asynchronous endpoint."""
    # With components these have the models, and the endpoint the role.
    has_components = "CreateInferenceComponent" in given.settings
    served = {} if has_components else {"ModelName": model_name}
    variant = {"VariantName": VARIANT, **served, "InitialVariantWeight": 1.0, **_capacity(given)}
    if _is_scraped(given):
        metrics = {"EnableDetailedObservability": True, "MetricPublishFrequencyInSeconds": given.metrics_secs}
    else:  # without a MetricsConfig the platform scrapes configurations made since June 2026
        metrics = {} if given.metrics == "scraped" else {"EnableDetailedObservability": False}
    content: Parameters = {
        "ProductionVariants": [variant],
        **given_values(MetricsConfig=metrics, ExecutionRoleArn=given.role if has_components else ""),
    }
    if given.capture_to:
        content["DataCaptureConfig"] = {
            "EnableCapture": True,
            "InitialSamplingPercentage": given.capture_percent,
            "DestinationS3Uri": given.capture_to,
            "CaptureOptions": [{"CaptureMode": mode} for mode in ("Input", "Output")],
            "CaptureContentTypeHeader": {"CsvContentTypes": [*CSV_TYPES], "JsonContentTypes": [*JSON_TYPES]},
        }
    if given.kind is Kind.ASYNC:
        output = {"S3OutputPath": _needed(given, "output", "s3://BUCKET/PREFIX for the responses")}
        topics = given_values(ErrorTopic=given.error_topic)
        content["AsyncInferenceConfig"] = {"OutputConfig": {**output, **given_values(NotificationConfig=topics)}}
    content = merged(content, given.settings.get("CreateEndpointConfig", {}))
    return {CONFIG: content_name(given.name, content), **content, **tagged(given.tag)}


def _capacity(given: Namespace) -> Parameters:
    if given.kind is Kind.SERVERLESS:
        if given.instance_type:
            raise BadSettings("a serverless endpoint has no --instance-type", hint="give it --memory-mb")
        sizes = {"MemorySizeInMB": given.memory_mb, "MaxConcurrency": given.max_concurrency}
        return {"ServerlessConfig": {**sizes, **given_values(ProvisionedConcurrency=given.provisioned_concurrency)}}
    return {
        "InstanceType": _needed(given, "instance_type", "such as ml.c6i.xlarge"),
        "InitialInstanceCount": given.instance_count,
        **given_values(InferenceAmiVersion=host_image(given)[0]),
    }


def _needed(given: Namespace, name: str, hint: str) -> str:
    value: str = getattr(given, name)
    if not value:
        raise BadSettings(f"--kind {given.kind} needs --{name.replace('_', '-')}", hint=hint)
    return value


# The host images of instances with GPUs, with the first part of the version of their driver; the oldest first. Source:
# botocore's model of the API, `InferenceAmiVersion` and `TransformAmiVersion`; docs/gpu.md.
_ENDPOINT_IMAGES = {"al2-ami-sagemaker-inference-gpu-3-1": 550, "al2023-ami-sagemaker-inference-gpu-4-1": 580}
_BATCH_IMAGES = {"al2-ami-sagemaker-batch-gpu-470": 470, "al2-ami-sagemaker-batch-gpu-535": 535}
_HAS_GPUS = re.compile(r"ml\.[gp]\d")
# By the CUDA of an image, instances with GPUs that it has no code for: CUDA 13 begins with Turing, and the libraries of
# the image with CUDA 12 end with Hopper.
_WITHOUT_CODE = {
    "13": (re.compile(r"ml\.p[23]\."), "older than Turing, which CUDA 13 does not support"),
    "12": (re.compile(r"ml\.(g7|p6)"), "Blackwell, for which the image with CUDA 12 has no libraries"),
}


def host_image(given: Namespace) -> tuple[str, str]:
    """The host image of `--ami`, or one whose driver runs `--cuda`, and why it was chosen.

    Empty texts for the platform's default, on instances without GPUs. Some instance types have driver 470 by default,
    on which none of the server's images for GPUs runs.
    """
    if given.ami or not _HAS_GPUS.match(given.instance_type):
        return given.ami, ""
    without_code, why = _WITHOUT_CODE[given.cuda]
    if without_code.match(given.instance_type):
        raise BadSettings(f"the GPUs of {given.instance_type} are {why}", hint="use the image with the other --cuda")
    least = LEAST_DRIVERS[int(given.cuda)]
    images = _BATCH_IMAGES if given.kind is Kind.BATCH else _ENDPOINT_IMAGES
    for name, driver in images.items():
        if driver >= int(least.partition(".")[0]):
            return name, (
                f"host image {name}: {given.instance_type} has GPUs, CUDA {given.cuda} (--cuda) needs driver {least} "
                f"or later, and this one has {driver}; --ami names another"
            )
    raise BadSettings(
        f"CUDA {given.cuda} needs driver {least}, and --kind {given.kind} has up to {max(images.values())}",
        hint="use the image with CUDA 12 (docker build --target gpu --build-arg CUDA=12) and --cuda 12; or give --ami",
    )


# Inference components and batch transform jobs


def _create_component(aws: Aws, given: Namespace, model_name: str) -> None:
    """An inference component of the endpoint with its name, for the model, unless the settings file says otherwise."""
    if given.no_wait:
        raise BadSettings("--no-wait with an inference component", hint="it is created when the endpoint is in service")
    base = {
        "InferenceComponentName": given.name,
        "EndpointName": given.name,
        "VariantName": VARIANT,
        "Specification": {"ModelName": model_name},
        "RuntimeConfig": {"CopyCount": 1},
        **tagged(given.tag),
    }
    parameters = merged(base, given.settings["CreateInferenceComponent"])
    aws.call(SAGEMAKER, "CreateInferenceComponent", parameters)
    name = {"InferenceComponentName": parameters["InferenceComponentName"]}
    going_on = ("Creating", "Updating")
    status = "InferenceComponentStatus"
    aws.wait("DescribeInferenceComponent", name, status, "InService", going_on, given.wait_secs)


def _transform(aws: Aws, given: Namespace, model: Parameters) -> None:
    source = _needed(given, "input", "s3://BUCKET/PREFIX with the objects to transform")
    output = _needed(given, "output", "s3://BUCKET/PREFIX for the responses")
    content = {
        "ModelName": model["ModelName"],
        # The server reads several records of one body only as lines.
        "BatchStrategy": "MultiRecord" if given.split == "Line" else "SingleRecord",
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": source}},
            "ContentType": given.content_type,
            "SplitType": given.split,
        },
        "TransformOutput": {
            "S3OutputPath": output,
            "Accept": given.accept or given.content_type,
            "AssembleWith": given.assemble,
        },
        "TransformResources": {
            "InstanceType": _needed(given, "instance_type", "such as ml.c6i.xlarge"),
            "InstanceCount": given.instance_count,
            **given_values(TransformAmiVersion=host_image(given)[0]),
        },
        **tagged(given.tag),
    }
    content = merged(content, given.settings.get("CreateTransformJob", {}))
    # Jobs with equal content are different jobs.
    name = {"TransformJobName": content_name(given.name, {**content, "now": datetime.now(UTC).isoformat()})}
    aws.call(SAGEMAKER, "CreateModel", model, may_exist=True)
    aws.call(SAGEMAKER, "CreateTransformJob", {**name, **content})
    if not given.no_wait:
        going_on = ("InProgress", "Stopping")
        aws.wait("DescribeTransformJob", name, "TransformJobStatus", "Completed", going_on, given.wait_secs)


# Alarms

CALLS = "AWS/SageMaker"
SERVER_ERRORS, LATENCY, _CACHE_HITS, _DISK, BACKLOG = (
    "5xx",
    "latency-p99",
    "cache-hits",
    "disk",
    "backlog-without-capacity",
)
ALARMS = (SERVER_ERRORS, LATENCY, _CACHE_HITS, _DISK, BACKLOG)
_LEAST_CACHE_HITS = 0.8
# Data capture stops when the disk is nearly full.
_MOST_DISK_PERCENT = 75.0


def put_alarms(aws: Aws, given: Namespace) -> None:
    """Put the alarms of an endpoint, which notify the SNS topics."""
    if not given.no_alarms:
        for alarm in alarms(given.name, given.kind, given.alarm_errors, given.alarm_latency_ms):
            actions = {"AlarmActions": given.alarm_topic, "OKActions": given.alarm_topic}
            aws.call("cloudwatch", "PutMetricAlarm", {**alarm, **actions, **tagged(given.tag)})


def alarms(endpoint: str, kind: Kind, errors: int, latency_ms: int) -> list[Parameters]:
    """The alarms of an endpoint. `errors` are 5xx responses per minute; `latency_ms` is for the time in the container.

    One value per minute is compared. Missing values, as without calls, raise no alarm.
    """

    def alarm(what: str, metric: str, above: float, minutes: tuple[int, int], text: str, **more: Any) -> Parameters:
        return {
            "AlarmName": f"{endpoint}-{what}",
            "AlarmDescription": f"{endpoint}: {text}",
            "Namespace": CALLS,
            "MetricName": metric,
            "Dimensions": [{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": VARIANT}],
            "Period": 60,
            "TreatMissingData": "notBreaching",
            "Threshold": float(above),
            "ComparisonOperator": "GreaterThanThreshold",
            "DatapointsToAlarm": minutes[0],
            "EvaluationPeriods": minutes[1],
            **(more or {"Statistic": "Average"}),
        }

    at_least = {"Statistic": "Sum", "ComparisonOperator": "GreaterThanOrEqualToThreshold"}
    time_text = "99th percentile of the time in the container, in microseconds"
    found = [
        alarm(SERVER_ERRORS, "Invocation5XXErrors", errors, (2, 3), "5xx responses per minute", **at_least),
        alarm(LATENCY, "ModelLatency", latency_ms * 1000, (3, 3), time_text, ExtendedStatistic="p99"),
    ]
    if kind is Kind.MULTI_MODEL:
        below = {"Statistic": "Average", "ComparisonOperator": "LessThanThreshold"}
        text = "share of calls whose model was already loaded"
        found.append(alarm(_CACHE_HITS, "ModelCacheHit", _LEAST_CACHE_HITS, (10, 10), text, **below))
    if kind is not Kind.SERVERLESS:
        machines = {"Namespace": "/aws/sagemaker/Endpoints", "Statistic": "Maximum"}
        text = "percent of the disk in use"
        found.append(alarm(_DISK, "DiskUtilization", _MOST_DISK_PERCENT, (5, 5), text, **machines))
    return found
