"""The model: an image, the place of its files, and the variables of the container.

Source: docs/spec/deploy.md section 4, docs/spec/sagemaker.md section A4.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.sagemaker.errors import BadSettings, Kind
from deploy.sagemaker.plan import VARIANT, Call, content_name, tagged
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
from trident.app.settings.reading import read_settings

# The listed types are captured as text, all others as base64. Those are npy, npz and the binary tensors, whose type
# contains a length and could not match a list.
CSV_TYPES = ("text/csv",)
JSON_TYPES = ("application/json", "application/jsonlines")


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The capture to `destination`, an s3:// prefix. `json_types` are additional content types that are JSON."""

    destination: str
    percent: int = 100
    modes: tuple[str, ...] = ("Input", "Output")
    json_types: tuple[str, ...] = ()
    kms_key: str = ""

    def parameters(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "EnableCapture": True,
            "InitialSamplingPercentage": self.percent,
            "DestinationS3Uri": self.destination,
            "CaptureOptions": [{"CaptureMode": mode} for mode in self.modes],
            "CaptureContentTypeHeader": {
                "CsvContentTypes": list(CSV_TYPES),
                "JsonContentTypes": list(dict.fromkeys((*JSON_TYPES, *self.json_types))),
            },
        }
        return {**found, "KmsKeyId": self.kms_key} if self.kms_key else found


# Source: docs/spec/sagemaker.md sections A1 and B1; the server reads these names and values.


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


def container_environment(kind: Kind, given: Mapping[str, str]) -> dict[str, str]:
    """The variables for the container of an endpoint: `given`, and those that its kind needs.

    Raises BadSettings for an unknown variable, for a value that the server would refuse, and for too many variables.
    """
    found = {**(_ASYNC if kind is Kind.ASYNC else {}), **given}
    check_names(found)
    _check_values(found)
    _check_sizes(found)
    return found


def check_names(given: Mapping[str, str]) -> None:
    """Raise BadSettings for a variable with the platform's prefix that nobody reads or that the platform sets itself.

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


def _check_values(given: Mapping[str, str]) -> None:
    """Check the values by the server's settings, in multi-model mode because that needs no model on the disk."""
    try:
        read_settings([], {**given, MULTI_MODEL: "true"})
    except BadOption as error:
        raise BadSettings(f"the server would not start with these variables: {error}") from None


def _check_sizes(given: Mapping[str, str]) -> None:
    if len(given) > _MOST_VARIABLES:
        raise BadSettings(f"{len(given)} variables; a container may have at most {_MOST_VARIABLES}")
    for name, value in given.items():
        if max(len(name.encode()), len(value.encode())) > _MOST_BYTES:
            raise BadSettings(f"the variable {name} has more than {_MOST_BYTES} bytes in its name or its value")
    together = sum(len(name.encode()) + len(value.encode()) for name, value in given.items())
    if together > _MOST_BYTES_TOGETHER:
        raise BadSettings(f"the variables have {together} bytes in total; at most {_MOST_BYTES_TOGETHER} are allowed")


_ONLY_ARCHIVES = (Kind.SERVERLESS, Kind.BATCH)


@dataclass(frozen=True, kw_only=True)
class Network:
    """The VPC of the container; without subnets and security groups it is in none."""

    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    is_isolated: bool = False

    def parameters(self) -> dict[str, Any]:
        """Raises BadSettings."""
        if bool(self.subnets) != bool(self.security_groups):
            raise BadSettings("a VPC needs subnets and security groups", hint="give --subnet and --security-group")
        found: dict[str, Any] = {"EnableNetworkIsolation": True} if self.is_isolated else {}
        if self.subnets:
            found["VpcConfig"] = {"Subnets": list(self.subnets), "SecurityGroupIds": list(self.security_groups)}
        return found


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model. `data` is the s3:// address of an archive (.tar.gz) or, if it ends with `/`, of a prefix.

    A prefix holds the archives of a multi-model endpoint; for other kinds it holds the model's plain files.
    `caches_models`: whether a multi-model endpoint keeps its models loaded between calls.
    """

    endpoint: str
    kind: Kind
    image: str
    role: str
    data: str
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    caches_models: bool = True

    @property
    def name(self) -> str:
        return content_name(self.endpoint, self._content())

    def call(self, tags: list[dict[str, str]]) -> Call:
        """Raises BadSettings."""
        parameters = {"ModelName": self.name, **self._content(), **tagged(tags)}
        return Call(service="sagemaker", operation="CreateModel", parameters=parameters, may_exist=True)

    def _content(self) -> dict[str, Any]:
        if self.kind is Kind.SERVERLESS and self.network.subnets:
            raise BadSettings("a serverless endpoint cannot be in a VPC", hint="omit --subnet and --security-group")
        container = {"Image": self.image, **self._files()}
        environment = container_environment(self.kind, self.environment)
        if environment:
            container["Environment"] = environment
        return {"PrimaryContainer": container, "ExecutionRoleArn": self.role, **self.network.parameters()}

    def _files(self) -> dict[str, Any]:
        if not self.data.startswith("s3://"):
            raise BadSettings(f"--model-data is '{self.data}'", hint="it takes s3://BUCKET/…/model.tar.gz or s3://…/")
        is_prefix = self.data.endswith("/")
        if self.kind is Kind.MULTI_MODEL:
            if not is_prefix:
                raise BadSettings(
                    f"--model-data is '{self.data}'",
                    hint="a multi-model endpoint needs a prefix that ends with /",
                )
            setting = "Enabled" if self.caches_models else "Disabled"
            cache = {"MultiModelConfig": {"ModelCacheSetting": setting}}
            return {"Mode": "MultiModel", "ModelDataUrl": self.data, **cache}
        if not is_prefix:
            if not self.data.endswith(".tar.gz"):
                raise BadSettings(
                    f"--model-data is '{self.data}'",
                    hint="an archive ends with .tar.gz, a prefix of plain files with /",
                )
            return {"Mode": "SingleModel", "ModelDataUrl": self.data}
        if self.kind in _ONLY_ARCHIVES:
            raise BadSettings(
                f"--kind {self.kind} does not accept plain files", hint="pack them: tar -C MODEL -czf model.tar.gz ."
            )
        source = {"S3Uri": self.data, "S3DataType": "S3Prefix", "CompressionType": "None"}
        return {"Mode": "SingleModel", "ModelDataSource": {"S3DataSource": source}}


# It is immutable: a change makes a new configuration before the old one is deleted. Source: docs/spec/deploy.md
# section 4.


_MB_STEP = 1024


@dataclass(frozen=True, kw_only=True)
class Instances:
    """The machines. Zeros and empty texts select the platform's defaults. Times are in seconds."""

    instance_type: str
    count: int = 1
    volume_gb: int = 0
    download_secs: int = 0
    startup_secs: int = 0
    ami: str = ""
    routing: str = ""

    def parameters(self) -> dict[str, Any]:
        optional = {
            "VolumeSizeInGB": self.volume_gb,
            "ModelDataDownloadTimeoutInSeconds": self.download_secs,
            "ContainerStartupHealthCheckTimeoutInSeconds": self.startup_secs,
            "InferenceAmiVersion": self.ami,
            "RoutingConfig": {"RoutingStrategy": self.routing} if self.routing else None,
        }
        given = {name: value for name, value in optional.items() if value}
        return {"InstanceType": self.instance_type, "InitialInstanceCount": self.count, **given}


@dataclass(frozen=True, kw_only=True)
class Serverless:
    """Serverless capacity: memory in MB and concurrent calls, `provisioned` of which are kept warm."""

    memory_mb: int = 2048
    max_concurrency: int = 5
    provisioned: int = 0

    def parameters(self) -> dict[str, Any]:
        """Raises BadSettings."""
        if self.memory_mb % _MB_STEP:
            raise BadSettings(f"--memory-mb is {self.memory_mb}", hint="1024 to 6144, in steps of 1024")
        if self.provisioned > self.max_concurrency:
            raise BadSettings(
                f"--provisioned-concurrency is {self.provisioned}", hint=f"--max-concurrency is {self.max_concurrency}"
            )
        sizes = {"MemorySizeInMB": self.memory_mb, "MaxConcurrency": self.max_concurrency}
        return {
            "ServerlessConfig": {**sizes, **({"ProvisionedConcurrency": self.provisioned} if self.provisioned else {})}
        }


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue of an asynchronous endpoint: s3:// prefixes for responses and failures, SNS topics to notify."""

    output: str
    failures: str = ""
    success_topic: str = ""
    error_topic: str = ""
    invocations_per_instance: int = 0

    def parameters(self) -> dict[str, Any]:
        topics = {"SuccessTopic": self.success_topic, "ErrorTopic": self.error_topic}
        given = {name: topic for name, topic in topics.items() if topic}
        output: dict[str, Any] = {"S3OutputPath": self.output}
        if self.failures:
            output["S3FailurePath"] = self.failures
        if given:
            output["NotificationConfig"] = given
        found: dict[str, Any] = {"OutputConfig": output}
        if self.invocations_per_instance:
            found["ClientConfig"] = {"MaxConcurrentInvocationsPerInstance": self.invocations_per_instance}
        return found


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """A configuration with one variant of `model_name` on `capacity`. `queue` makes the endpoint asynchronous."""

    endpoint: str
    kind: Kind
    model_name: str
    capacity: Instances | Serverless
    capture: Capture | None = None
    queue: Queue | None = None

    @property
    def name(self) -> str:
        return content_name(self.endpoint, self._content())

    def call(self, tags: list[dict[str, str]]) -> Call:
        """Raises BadSettings."""
        parameters = {"EndpointConfigName": self.name, **self._content(), **tagged(tags)}
        return Call(service="sagemaker", operation="CreateEndpointConfig", parameters=parameters, may_exist=True)

    def _content(self) -> dict[str, Any]:
        variant = {"VariantName": VARIANT, "ModelName": self.model_name, "InitialVariantWeight": 1.0}
        found: dict[str, Any] = {"ProductionVariants": [{**variant, **self.capacity.parameters()}]}
        if self.capture is not None:
            if self.kind is Kind.SERVERLESS:
                raise BadSettings("a serverless endpoint captures no data", hint="leave out --capture-to")
            found["DataCaptureConfig"] = self.capture.parameters()
        if self.queue is not None:
            found["AsyncInferenceConfig"] = self.queue.parameters()
        return found
