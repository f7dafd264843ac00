"""The endpoint configuration: the machines of a model and the way calls reach it.

It is immutable: a change makes a new configuration before the old one is deleted.
Source: docs/spec/deploy.md section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploy.sagemaker.capture import Capture
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.kind import Kind
from deploy.sagemaker.names import VARIANT, content_name, tagged
from deploy.sagemaker.plan import Call

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
