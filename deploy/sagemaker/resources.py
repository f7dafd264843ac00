"""The calls that create the resources of a deployment, made from the options of the command line.

Models and endpoint configurations are immutable: a change makes a new one, whose name ends with a hash of its content.
Source: docs/spec/deploy.md sections 4 and 8, docs/spec/sagemaker.md sections A1, A4, A6, A9 and B1.
"""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from deploy.sagemaker.host_image import host_image
from deploy.sagemaker.options import Metric, Metrics, Shift
from deploy.sagemaker.plan import VARIANT, Answer, BadSettings, Call, Kind, content_name, tagged
from trident.adapters.common.options import BadOption
from trident.adapters.sagemaker.settings import (
    BATCH,
    BIND_TO_PORT,
    EFFECTIVE_VARIABLES,
    MULTI_MODEL,
    PREFIX,
    SAFE_PORT_RANGE,
    WITHOUT_EFFECT,
)
from trident.app.emulators.sagemaker.api_model import merged
from trident.app.settings.reading import read_settings

_MOST_VARIABLES = 100
_MOST_BYTES = 1024
_MOST_BYTES_TOGETHER = 32 << 10
# The platform sets these itself.
_OF_THE_PLATFORM = {
    MULTI_MODEL: "it is set for --kind multi-model",
    BATCH: "it is set for --kind batch",
    BIND_TO_PORT: "it is set if containers share a host",
    SAFE_PORT_RANGE: "it is set if containers share a host",
}
# Only an asynchronous endpoint accepts bodies of up to 1 GiB and calls of up to an hour.
_ASYNC = {"SAGEMAKER_MAX_REQUEST_SIZE": str(1 << 30), "SAGEMAKER_MODEL_SERVER_TIMEOUT": "3600"}
# The listed types are captured as text, all others as base64. Those are npy, npz and the binary tensors, whose type
# contains a length and could not match a list.
CSV_TYPES = ("text/csv",)
JSON_TYPES = ("application/json", "application/jsonlines")
_MB_STEP = 1024
_MOST_IN_FLIGHT_MB = 100
_MOST_STEP_PERCENT = 50
_LEAST_LINEAR_PERCENT = 10
_LEAST_LIMIT_S, _MOST_LIMIT_S = 600, 28800


def given_values(**members: Any) -> dict[str, Any]:
    """The members that have a value; without the others the platform's defaults apply."""
    return {name: value for name, value in members.items() if value}


def needed(given: Namespace, name: str, hint: str) -> str:
    value: str = getattr(given, name)
    if not value:
        raise BadSettings(f"--kind {given.kind} needs --{name.replace('_', '-')}", hint=hint)
    return value


def pairs(flag: str, texts: list[str]) -> dict[str, str]:
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise BadSettings(f"{flag} is '{text}'", hint="it takes NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def tags_of(given: Namespace) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in pairs("--tag", given.tag).items()]


def container_environment(kind: Kind, given: Mapping[str, str]) -> dict[str, str]:
    """The variables for the container of an endpoint: `given`, and those that its kind needs.

    Raises BadSettings for an unknown variable, for a value that the server would refuse, and for too many variables.
    The server's settings check values in multi-model mode, because that needs no model on the disk.
    """
    found = {**(_ASYNC if kind is Kind.ASYNC else {}), **given}
    _check_names(found)
    try:
        read_settings([], {**found, MULTI_MODEL: "true"})
    except BadOption as error:
        raise BadSettings(f"the server would not start with these variables: {error}") from None
    if len(found) > _MOST_VARIABLES:
        raise BadSettings(f"{len(found)} variables; a container may have at most {_MOST_VARIABLES}")
    for name, value in found.items():
        if max(len(name.encode()), len(value.encode())) > _MOST_BYTES:
            raise BadSettings(f"the variable {name} has more than {_MOST_BYTES} bytes in its name or its value")
    together = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
    if together > _MOST_BYTES_TOGETHER:
        raise BadSettings(f"the variables have {together} bytes in total; at most {_MOST_BYTES_TOGETHER} are allowed")
    return found


def _check_names(given: Mapping[str, str]) -> None:
    """Check for variables with the platform's prefix that nobody reads or that the platform sets itself.

    The server's settings check variables with the server's prefix.
    """
    known = (*EFFECTIVE_VARIABLES, *WITHOUT_EFFECT)
    for name in given:
        if name in _OF_THE_PLATFORM:
            raise BadSettings(f"the platform sets the variable {name} itself: {_OF_THE_PLATFORM[name]}")
        if name.startswith(PREFIX) and name not in known:
            # Without the prefix, which makes all names similar.
            ends = {each.removeprefix(PREFIX): each for each in known}
            nearest = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1)
            raise BadSettings(
                f"unknown variable {name}" + (f"; did you mean {ends[nearest[0]]}?" if nearest else ""),
                hint="docs/sagemaker.md lists the variables that the server reads",
            )


def create_model(given: Namespace) -> Call:
    """The model: an image, the place of its files, and the variables of the container."""
    if bool(given.subnet) != bool(given.security_group):
        raise BadSettings("a VPC needs subnets and security groups", hint="give --subnet and --security-group")
    if given.kind is Kind.SERVERLESS and given.subnet:
        raise BadSettings("a serverless endpoint cannot be in a VPC", hint="omit --subnet and --security-group")
    environment = container_environment(given.kind, {**_metrics_variables(given), **pairs("--env", given.env)})
    container = {"Image": given.image, **_model_files(given), **given_values(Environment=environment)}
    if _is_scraped(given):
        endpoint = {"MetricsEndpointPath": "/metrics", "MetricPublishFrequencyInSeconds": given.metrics_secs}
        container["ContainerMetricsConfig"] = {"MetricsEndpoints": [endpoint]}
    vpc = {"Subnets": given.subnet, "SecurityGroupIds": given.security_group} if given.subnet else None
    content = {
        "PrimaryContainer": container,
        "ExecutionRoleArn": given.role,
        **given_values(EnableNetworkIsolation=given.network_isolation, VpcConfig=vpc),
    }
    content = merged(content, given.settings.get("CreateModel", {}))
    parameters = {"ModelName": content_name(given.name, content), **content, **tagged(tags_of(given))}
    return Call(service="sagemaker", operation="CreateModel", parameters=parameters, may_exist=True)


_METRICS_LOG = "TRIDENT_METRICS_LOG"
_EMBEDDED = "emf"


def _is_scraped(given: Namespace) -> bool:
    """Whether the configuration says that the platform scrapes the metrics. It scrapes no batch transform job, and
    whether it scrapes serverless endpoints is left to its default."""
    return given.metrics is Metrics.SCRAPED and given.kind not in (Kind.BATCH, Kind.SERVERLESS)


def _metrics_variables(given: Namespace) -> dict[str, str]:
    """The variables for embedded metrics. Raises BadSettings for metrics that are embedded and scraped as well."""
    if given.metrics is Metrics.EMBEDDED:
        return {_METRICS_LOG: _EMBEDDED, f"{_METRICS_LOG}_DIMENSION": f"endpoint={given.name}"}
    if given.kind is not Kind.BATCH and pairs("--env", given.env).get(_METRICS_LOG) == _EMBEDDED:
        raise BadSettings(
            f"{_METRICS_LOG}={_EMBEDDED} with --metrics {given.metrics}: the platform may scrape the same metrics, "
            "and they would be paid twice",
            hint="--metrics embedded sets the variable and turns the scraping off",
        )
    return {}


def _metrics_config(given: Namespace) -> dict[str, Any]:
    """The MetricsConfig of an endpoint; without one the platform scrapes configurations made since June 2026."""
    if _is_scraped(given):
        return {"EnableDetailedObservability": True, "MetricPublishFrequencyInSeconds": given.metrics_secs}
    return {} if given.metrics is Metrics.SCRAPED else {"EnableDetailedObservability": False}


def _model_files(given: Namespace) -> dict[str, Any]:
    """An archive, the plain files below a prefix, or, for a multi-model endpoint, the archives below it."""

    def refused(hint: str) -> BadSettings:
        return BadSettings(f"--model-data is '{given.model_data}'", hint=hint)

    data: str = given.model_data
    if not data.startswith("s3://"):
        raise refused("it takes s3://BUCKET/…/model.tar.gz or s3://…/")
    if given.kind is Kind.MULTI_MODEL:
        if not data.endswith("/"):
            raise refused("a multi-model endpoint needs a prefix that ends with /")
        setting = "Disabled" if given.no_model_cache else "Enabled"
        return {"Mode": "MultiModel", "ModelDataUrl": data, "MultiModelConfig": {"ModelCacheSetting": setting}}
    if not data.endswith("/"):
        if not data.endswith(".tar.gz"):
            raise refused("an archive ends with .tar.gz, a prefix of plain files with /")
        return {"Mode": "SingleModel", "ModelDataUrl": data}
    if given.kind in (Kind.SERVERLESS, Kind.BATCH):
        raise BadSettings(
            f"--kind {given.kind} does not accept plain files", hint="pack them: tar -C MODEL -czf model.tar.gz ."
        )
    source = {"S3Uri": data, "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"Mode": "SingleModel", "ModelDataSource": {"S3DataSource": source}}


def create_config(given: Namespace, model_name: str) -> Call:
    """The endpoint configuration: one variant of the model, data capture, and the queue of an asynchronous endpoint."""
    capacity = _serverless(given) if given.kind is Kind.SERVERLESS else _instances(given)
    # With components these have the models, and the endpoint the role.
    has_components = "CreateInferenceComponent" in given.settings
    served = {} if has_components else {"ModelName": model_name}
    variant = {"VariantName": VARIANT, **served, "InitialVariantWeight": 1.0, **capacity}
    content: dict[str, Any] = {
        "ProductionVariants": [variant],
        **given_values(MetricsConfig=_metrics_config(given), ExecutionRoleArn=given.role if has_components else ""),
    }
    if given.capture_to:
        if given.kind is Kind.SERVERLESS:
            raise BadSettings("a serverless endpoint captures no data", hint="leave out --capture-to")
        content["DataCaptureConfig"] = {
            "EnableCapture": True,
            "InitialSamplingPercentage": given.capture_percent,
            "DestinationS3Uri": given.capture_to,
            "CaptureOptions": [{"CaptureMode": mode} for mode in ("Input", "Output")],
            "CaptureContentTypeHeader": {
                "CsvContentTypes": list(CSV_TYPES),
                "JsonContentTypes": list(dict.fromkeys((*JSON_TYPES, *given.capture_json_type))),
            },
            **given_values(KmsKeyId=given.kms_key),
        }
    if given.kind is Kind.ASYNC:
        topics = given_values(SuccessTopic=given.success_topic, ErrorTopic=given.error_topic)
        output = needed(given, "output", "s3://BUCKET/PREFIX for the responses")
        client = given_values(MaxConcurrentInvocationsPerInstance=given.invocations_per_instance)
        content["AsyncInferenceConfig"] = {
            "OutputConfig": {
                "S3OutputPath": output,
                **given_values(S3FailurePath=given.failures, NotificationConfig=topics),
            },
            **given_values(ClientConfig=client),
        }
    content = merged(content, given.settings.get("CreateEndpointConfig", {}))
    parameters = {"EndpointConfigName": content_name(given.name, content), **content, **tagged(tags_of(given))}
    return Call(service="sagemaker", operation="CreateEndpointConfig", parameters=parameters, may_exist=True)


def create_component(given: Namespace, model_name: str) -> Call:
    """An inference component of the endpoint with its name, for the model, unless the settings file says otherwise."""
    if given.kind is not Kind.REAL_TIME:
        raise BadSettings(f"--kind {given.kind} has no inference components", hint="only --kind real-time has")
    base = {
        "InferenceComponentName": given.name,
        "EndpointName": given.name,
        "VariantName": VARIANT,
        "Specification": {"ModelName": model_name},
        "RuntimeConfig": {"CopyCount": 1},
        **tagged(tags_of(given)),
    }
    parameters = merged(base, given.settings["CreateInferenceComponent"])
    return Call(service="sagemaker", operation="CreateInferenceComponent", parameters=parameters)


def _instances(given: Namespace) -> dict[str, Any]:
    return {
        "InstanceType": needed(given, "instance_type", "such as ml.c6i.xlarge"),
        "InitialInstanceCount": given.instance_count,
        **given_values(
            VolumeSizeInGB=given.volume_gb,
            ModelDataDownloadTimeoutInSeconds=given.download_secs,
            ContainerStartupHealthCheckTimeoutInSeconds=given.startup_secs,
            InferenceAmiVersion=host_image(given),
            RoutingConfig=given_values(RoutingStrategy=given.routing),
        ),
    }


def _serverless(given: Namespace) -> dict[str, Any]:
    if given.instance_type:
        raise BadSettings("a serverless endpoint has no --instance-type", hint="give it --memory-mb")
    if given.memory_mb % _MB_STEP:
        raise BadSettings(f"--memory-mb is {given.memory_mb}", hint="1024 to 6144, in steps of 1024")
    if given.provisioned_concurrency > given.max_concurrency:
        raise BadSettings(
            f"--provisioned-concurrency is {given.provisioned_concurrency}",
            hint=f"--max-concurrency is {given.max_concurrency}",
        )
    sizes = {"MemorySizeInMB": given.memory_mb, "MaxConcurrency": given.max_concurrency}
    return {"ServerlessConfig": {**sizes, **given_values(ProvisionedConcurrency=given.provisioned_concurrency)}}


def longest_rollout_secs(given: Namespace) -> int:
    """The longest duration in seconds: all steps, the bake time, and half an hour for instances to start."""
    steps = -(-100 // max(1, given.step_percent)) if given.shift is Shift.LINEAR else 2
    whole: int = steps * given.step_secs + given.bake_secs + 1800
    return min(_MOST_LIMIT_S, max(_LEAST_LIMIT_S, whole))


def rollout(given: Namespace) -> dict[str, Any] | None:
    """The DeploymentConfig of an update; None for serverless, which has none.

    `--step-percent` of the capacity shifts first (canary) or at every step (linear). After the last step the old
    instances stay for a while, so that a rollback is quick; alarms trigger one at any time until then.
    """
    if given.kind is Kind.SERVERLESS:
        return None
    least = _LEAST_LINEAR_PERCENT if given.shift is Shift.LINEAR else 1
    if given.shift is not Shift.ALL_AT_ONCE and not least <= given.step_percent <= _MOST_STEP_PERCENT:
        raise BadSettings(f"--step-percent is {given.step_percent}", hint=f"{least} to {_MOST_STEP_PERCENT}")
    size = {"Type": "CAPACITY_PERCENT", "Value": given.step_percent}
    routing = {
        "Type": given.shift.replace("-", "_").upper(),
        "WaitIntervalInSeconds": given.step_secs,
        **given_values(
            CanarySize=size if given.shift is Shift.CANARY else None,
            LinearStepSize=size if given.shift is Shift.LINEAR else None,
        ),
    }
    own = [] if given.no_alarms else [alarm_name(given.name, what) for what in (_SERVER_ERRORS, _LATENCY)]
    alarms = [{"AlarmName": name} for name in given.rollback_alarm or own]
    return {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": routing,
            "TerminationWaitInSeconds": given.bake_secs,
            "MaximumExecutionTimeoutInSeconds": longest_rollout_secs(given),
        },
        **given_values(AutoRollbackConfiguration={"Alarms": alarms} if alarms else None),
    }


def create_transform_job(given: Namespace, model_name: str, now: str) -> Call:
    """A batch transform job; `now` distinguishes jobs with equal content."""
    if given.split == "None" and given.strategy == "MultiRecord":
        raise BadSettings("--split None makes each object one record", hint="add --strategy SingleRecord")
    if given.split in ("RecordIO", "TFRecord") and given.strategy == "MultiRecord":
        raise BadSettings(
            f"--split {given.split} leaves the frames around records, which the server cannot read",
            hint="with --strategy SingleRecord the platform removes them",
        )
    if given.join == "Input" and given.assemble != "Line":
        raise BadSettings("--join Input writes responses beside records, line by line", hint="add --assemble Line")
    if given.max_payload_mb * max(1, given.max_concurrent) > _MOST_IN_FLIGHT_MB:
        raise BadSettings(
            f"{given.max_concurrent} concurrent bodies of {given.max_payload_mb} MB",
            hint=f"--max-payload-mb times --max-concurrent is at most {_MOST_IN_FLIGHT_MB}",
        )
    source = needed(given, "input", "s3://BUCKET/PREFIX with the objects to transform")
    output = needed(given, "output", "s3://BUCKET/PREFIX for the responses")
    machines = {
        "InstanceType": needed(given, "instance_type", "such as ml.c6i.xlarge"),
        "InstanceCount": given.instance_count,
        **given_values(TransformAmiVersion=host_image(given)),
    }
    filters = given_values(InputFilter=given.input_filter, OutputFilter=given.output_filter)
    processing = {**filters, **({"JoinSource": given.join} if given.join != "None" or filters else {})}
    parameters = {
        "TransformJobName": given.job_name or content_name(given.name, {"model": model_name, "at": now}),
        "ModelName": model_name,
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": given.input_type, "S3Uri": source}},
            "ContentType": given.content_type,
            "CompressionType": given.compression,
            "SplitType": given.split,
        },
        "TransformOutput": {
            "S3OutputPath": output,
            "AssembleWith": given.assemble,
            "Accept": given.accept or given.content_type,
            **given_values(KmsKeyId=given.kms_key),
        },
        "TransformResources": machines,
        "BatchStrategy": given.strategy,
        "MaxPayloadInMB": given.max_payload_mb,
        "ModelClientConfig": {
            "InvocationsTimeoutInSeconds": given.invocation_timeout_secs,
            "InvocationsMaxRetries": given.invocation_retries,
        },
        **tagged(tags_of(given)),
        **given_values(MaxConcurrentTransforms=given.max_concurrent, DataProcessing=processing),
    }
    parameters = merged(parameters, given.settings.get("CreateTransformJob", {}))
    return Call(service="sagemaker", operation="CreateTransformJob", parameters=parameters)


AUTOSCALING = "application-autoscaling"
_INSTANCES = "sagemaker:variant:DesiredInstanceCount"
_PROVISIONED = "sagemaker:variant:DesiredProvisionedConcurrency"
_UTILIZATION = "SageMakerVariantProvisionedConcurrencyUtilization"
_PREDEFINED = {
    Metric.INVOCATIONS: "SageMakerVariantInvocationsPerInstance",
    Metric.CONCURRENCY: "SageMakerVariantConcurrentRequestsPerModelHighResolution",
}
_FROM_ZERO_COOLDOWN_S = 300


def _variant_id(endpoint: str) -> str:
    """The name that Application Auto Scaling uses for the endpoint's only variant."""
    return f"endpoint/{endpoint}/variant/{VARIANT}"


def scaling(given: Namespace) -> tuple[Call, ...]:
    """Scaling between `--min` and `--max` instances; for serverless endpoints, warm concurrent calls.

    `--target` is the value of the metric per instance. For an asynchronous endpoint it is the number of waiting calls
    per instance; for a serverless one, the share of warm capacity in use.
    """
    if not 0 <= given.min <= given.max or given.max == 0:
        raise BadSettings(f"--min is {given.min} and --max {given.max}", hint="--min is at most --max")
    if given.min == 0 and given.kind is not Kind.ASYNC:
        raise BadSettings(f"--min is 0 and --kind {given.kind}", hint="only --kind async can scale to 0 instances")
    if given.target <= 0:
        raise BadSettings(f"--target is {given.target:g}", hint="it must be above 0")
    if given.kind is Kind.SERVERLESS and given.target >= 1:
        raise BadSettings(f"--target is {given.target:g}", hint="for a serverless endpoint it is a share, such as 0.7")

    def call(operation: str, **more: Any) -> Call:
        target = {
            "ServiceNamespace": "sagemaker",
            "ResourceId": _variant_id(given.name),
            "ScalableDimension": _PROVISIONED if given.kind is Kind.SERVERLESS else _INSTANCES,
        }
        return Call(service=AUTOSCALING, operation=operation, parameters={**target, **more})

    def policy(name: str, kind: str, configuration: dict[str, Any]) -> Call:
        configured = {"PolicyType": f"{kind}Scaling", f"{kind}ScalingPolicyConfiguration": configuration}
        return call("PutScalingPolicy", PolicyName=f"{given.name}-{name}", **configured)

    tracking: dict[str, Any] = {
        "TargetValue": given.target,
        "ScaleInCooldown": given.in_cooldown_secs,
        "ScaleOutCooldown": given.out_cooldown_secs,
    }
    if given.kind is Kind.ASYNC:
        tracking["CustomizedMetricSpecification"] = {
            "MetricName": "ApproximateBacklogSizePerInstance",
            "Namespace": _CALLS,
            "Dimensions": [{"Name": "EndpointName", "Value": given.name}],
            "Statistic": "Average",
        }
    else:
        metric = _UTILIZATION if given.kind is Kind.SERVERLESS else _PREDEFINED[given.metric]
        tracking["PredefinedMetricSpecification"] = {"PredefinedMetricType": metric}
    calls = [
        call("RegisterScalableTarget", MinCapacity=given.min, MaxCapacity=given.max),
        policy("target", "TargetTracking", tracking),
    ]
    if given.kind is Kind.ASYNC and given.min == 0:
        # Adds an instance when calls wait and none exists: the backlog per instance is undefined without instances.
        step = {
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Average",
            "Cooldown": _FROM_ZERO_COOLDOWN_S,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        }
        backlog = backlog_alarm(given.name, [Answer("PutScalingPolicy", "PolicyARN")])
        calls += [policy("from-zero", "Step", step), put_alarm(backlog)]
    return tuple(calls)


def no_scaling(endpoint: str, *, best_effort: bool = False) -> tuple[Call, ...]:
    """Remove any scaling from the variant; this also removes its policies and their alarms."""
    target = {"ServiceNamespace": "sagemaker", "ResourceIds": [_variant_id(endpoint)]}
    dimension = Answer("DescribeScalableTargets", "ScalableTargets[].ScalableDimension", each=True)
    parameters = {"ServiceNamespace": "sagemaker", "ResourceId": _variant_id(endpoint), "ScalableDimension": dimension}
    return (
        Call(service=AUTOSCALING, operation="DescribeScalableTargets", parameters=target, best_effort=best_effort),
        Call(service=AUTOSCALING, operation="DeregisterScalableTarget", parameters=parameters, best_effort=best_effort),
    )


_CALLS = "AWS/SageMaker"
_MACHINES = "/aws/sagemaker/Endpoints"
_SERVER_ERRORS, _LATENCY, _CACHE_HITS, _DISK = "5xx", "latency-p99", "cache-hits", "disk"
_BACKLOG = "backlog-without-capacity"
_LEAST_CACHE_HITS = 0.8
# Data capture stops when the disk is nearly full.
_MOST_DISK_PERCENT = 75.0


_COMPARISONS = {
    ">=": "GreaterThanOrEqualToThreshold",
    ">": "GreaterThanThreshold",
    "<": "LessThanThreshold",
}


def put_alarms(
    endpoint: str, kind: Kind, tags: list[dict[str, str]], errors: int, latency_ms: int, topics: list[str]
) -> tuple[Call, ...]:
    """The alarms of an endpoint, which notify the SNS topics.

    `errors` is the threshold of 5xx responses per minute; `latency_ms` is the limit for the 99th percentile of the time
    that calls spend in the container.
    """
    variant = {"EndpointName": endpoint, "VariantName": VARIANT}

    def alarm(what: str, metric: str, when: str, minutes: tuple[int, int], text: str, **more: Any) -> dict[str, Any]:
        actions = {"AlarmActions": topics, "OKActions": topics}
        return {**_alarm(endpoint, what, metric, when, minutes, text, variant), **actions, **more, **tagged(tags)}

    time_text = "99th percentile of the time in the container, in microseconds"
    latency = {"ExtendedStatistic": "p99", "Statistic": None}
    alarms = [
        alarm(
            _SERVER_ERRORS, "Invocation5XXErrors", f">= {errors}", (2, 3), "5xx responses per minute", Statistic="Sum"
        ),
        alarm(_LATENCY, "ModelLatency", f"> {latency_ms * 1000}", (3, 3), time_text, **latency),
    ]
    if kind is Kind.MULTI_MODEL:
        hits = "share of calls whose model was already loaded"
        alarms.append(alarm(_CACHE_HITS, "ModelCacheHit", f"< {_LEAST_CACHE_HITS}", (10, 10), hits))
    if kind is not Kind.SERVERLESS:
        disk = {"Namespace": _MACHINES, "Statistic": "Maximum"}
        when = f"> {_MOST_DISK_PERCENT}"
        alarms.append(alarm(_DISK, "DiskUtilization", when, (5, 5), "percent of the disk in use", **disk))
    return tuple(put_alarm({name: value for name, value in each.items() if value is not None}) for each in alarms)


def backlog_alarm(endpoint: str, actions: list[str]) -> dict[str, Any]:
    """The alarm for an asynchronous endpoint that has queued calls but no instance for two minutes."""
    text, of_endpoint = "1 while calls wait and no instance exists", {"EndpointName": endpoint}
    alarm = _alarm(endpoint, _BACKLOG, "HasBacklogWithoutCapacity", ">= 1", (2, 2), text, of_endpoint)
    return {**alarm, "TreatMissingData": "missing", "AlarmActions": actions}


def _alarm(
    endpoint: str,
    what: str,
    metric: str,
    when: str,
    minutes: tuple[int, int],
    text: str,
    dimensions: dict[str, str],
) -> dict[str, Any]:
    """One value per minute is compared, and `minutes` of so many must breach the threshold of `when`.

    Missing values, as without calls, raise no alarm.
    """
    comparison, threshold = when.split()
    return {
        "AlarmName": alarm_name(endpoint, what),
        "AlarmDescription": f"{endpoint}: {text}",
        "Namespace": _CALLS,
        "MetricName": metric,
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "Period": 60,
        "TreatMissingData": "notBreaching",
        "Statistic": "Average",
        "Threshold": float(threshold),
        "ComparisonOperator": _COMPARISONS[comparison],
        "EvaluationPeriods": minutes[1],
        "DatapointsToAlarm": minutes[0],
    }


def put_alarm(parameters: dict[str, Any]) -> Call:
    return Call(service="cloudwatch", operation="PutMetricAlarm", parameters=parameters)


def alarm_name(endpoint: str, what: str) -> str:
    return f"{endpoint}-{what}"


def alarm_names(endpoint: str) -> list[str]:
    """The names of all alarms that a deployment may have created."""
    return [alarm_name(endpoint, what) for what in (_SERVER_ERRORS, _LATENCY, _CACHE_HITS, _DISK, _BACKLOG)]
