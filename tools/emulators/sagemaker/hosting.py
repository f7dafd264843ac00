"""The parameters of an endpoint or a job, from a settings file: how many containers, and which limits they have.

Source: docs/spec/sagemaker.md sections A3 and A6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from trident.core.errors import ConfigInvalid
from trident.tools.emulators.sagemaker.api_model import merged, problems
from trident.tools.emulators.sagemaker.endpoint import SageMakerLimits

OPERATIONS = ("CreateModel", "CreateEndpointConfig", "CreateInferenceComponent", "CreateTransformJob")
COMPONENT = "model"
"""The name of the inference component, unless the file names it."""
_MIB = 1 << 20
_SERVERLESS_BODY = 4 * _MIB
_SERVERLESS_START_S = 180.0
_SERVERLESS_STEP_MB = 1024
_ASYNC_BODY = 1 << 30
_ASYNC_S = 3600.0
# Added to the parameters in the file.
_VARIANT = {"VariantName": "AllTraffic", "InitialInstanceCount": 1}
_REQUIRED: Mapping[str, dict[str, Any]] = {
    "CreateModel": {"ModelName": "model"},
    "CreateEndpointConfig": {"EndpointConfigName": "emulated", "ProductionVariants": [_VARIANT]},
    "CreateInferenceComponent": {
        "InferenceComponentName": COMPONENT,
        "EndpointName": "emulated",
        "VariantName": "AllTraffic",
        "RuntimeConfig": {"CopyCount": 1},
    },
    "CreateTransformJob": {
        "TransformJobName": "emulated",
        "ModelName": "model",
        "TransformInput": {"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://emulated/input"}}},
        "TransformOutput": {"S3OutputPath": "s3://emulated/output"},
        "TransformResources": {"InstanceType": "ml.c6i.xlarge", "InstanceCount": 1},
    },
}


class Hosting:
    """`settings` are parameters by operation, as `read_settings_file` returns them.

    `serverless`, `asynchronous` and `component` are the parameters of these kinds of endpoints, and empty for others.
    `scraped` is the path of the metrics and the seconds between scrapes; an empty path if the platform scrapes none.
    """

    def __init__(self, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Raises ConfigInvalid for parameters that the API does not take."""
        for operation, given in settings.items():
            found = problems("sagemaker", operation, merged(_REQUIRED[operation], given))
            if found:
                raise ConfigInvalid("\n".join(f"{operation}: {problem}" for problem in found))
        self._settings = settings
        self._config = self._merged("CreateEndpointConfig")
        variant = self._config["ProductionVariants"][0]
        self.instances = int(variant["InitialInstanceCount"])
        self.routing: dict[str, Any] = variant.get("RoutingConfig", {})
        self.serverless: dict[str, Any] = variant.get("ServerlessConfig", {})
        self.asynchronous: dict[str, Any] = self._config.get("AsyncInferenceConfig", {})
        has_component = "CreateInferenceComponent" in settings
        self.component = self._merged("CreateInferenceComponent") if has_component else {}
        self.transform: dict[str, Any] = settings.get("CreateTransformJob", {})
        container = self._merged("CreateModel").get("PrimaryContainer", {})
        self.variables: dict[str, str] = container.get("Environment", {})
        self.scraped = "", 0.0
        metrics = self._config.get("MetricsConfig", {})
        if not self.serverless and metrics.get("EnableDetailedObservability", True):
            endpoints = container.get("ContainerMetricsConfig", {}).get("MetricsEndpoints", [])
            page = endpoints[0] if endpoints else {"MetricsEndpointPath": "/metrics"}
            every = page.get("MetricPublishFrequencyInSeconds", metrics.get("MetricPublishFrequencyInSeconds", 60))
            self.scraped = str(page["MetricsEndpointPath"]), float(every)

    def _merged(self, operation: str) -> dict[str, Any]:
        found: dict[str, Any] = merged(_REQUIRED[operation], self._settings.get(operation, {}))
        return found

    def check(self, *, multi_model: bool) -> None:
        """Raises ConfigInvalid for parameters that the emulator does not take together."""
        if len(self._config["ProductionVariants"]) != 1:
            raise ConfigInvalid("the emulator has one production variant")
        is_plain = self.instances == 1 and not (self.serverless or self.asynchronous or self.component)
        if multi_model and not is_plain:
            raise ConfigInvalid("the emulator runs a multi-model endpoint on one instance, which answers at once")
        if self.serverless and (self.asynchronous or self.component or "DataCaptureConfig" in self._config):
            raise ConfigInvalid("a serverless endpoint has no queue, no inference components and no data capture")
        if self.serverless.get("MemorySizeInMB", 0) % _SERVERLESS_STEP_MB:
            raise ConfigInvalid("MemorySizeInMB takes 1024 to 6144, in steps of 1024")

    def limits(self, limits: SageMakerLimits) -> SageMakerLimits:
        """The limits of the kind of endpoint, given those of one that answers at once."""
        if self.asynchronous:
            return replace(limits, body_bytes=_ASYNC_BODY, invoke_s=_ASYNC_S)
        if self.serverless:
            return replace(limits, body_bytes=_SERVERLESS_BODY, startup_s=min(limits.startup_s, _SERVERLESS_START_S))
        return limits
