"""How an endpoint is hosted, by the parameters of the platform's API in a settings file.

Source: docs/spec/sagemaker.md sections A2 and A6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trident.app.emulators.sagemaker.api_model import merged, problems
from trident.app.emulators.sagemaker.endpoint import PlatformLimits
from trident.core.errors import ConfigInvalid

OPERATIONS = ("CreateModel", "CreateEndpointConfig", "CreateInferenceComponent", "CreateTransformJob")
COMPONENT = "model"
"""The name of the inference component, unless the file names it."""
_METRICS_LOG = "TRIDENT_METRICS_LOG"
_MIB = 1 << 20
_SERVERLESS_BODY = 4 * _MIB
_SERVERLESS_START_S = 180.0
_SERVERLESS_STEP_MB = 1024
_ASYNC_BODY = 1 << 30
_ASYNC_S = 3600.0
# What a call has besides the parameters in the file.
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


@dataclass(frozen=True)
class Hosting:
    """`settings` are parameters by operation, as `read_settings_file` returns them."""

    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self, *, multi_model: bool) -> None:
        """Raises ConfigInvalid for parameters that the API or the emulator does not take."""
        for operation, given in self.settings.items():
            found = problems("sagemaker", operation, merged(_REQUIRED[operation], given))
            if found:
                raise ConfigInvalid("\n".join(f"{operation}: {problem}" for problem in found))
        if len(self._config["ProductionVariants"]) != 1:
            raise ConfigInvalid("the emulator has one production variant")
        is_plain = self.instances == 1 and not (self.serverless or self.asynchronous or self.component)
        if multi_model and not is_plain:
            raise ConfigInvalid("the emulator runs a multi-model endpoint on one instance, which answers at once")
        if self.serverless and (self.asynchronous or self.component or "DataCaptureConfig" in self._config):
            raise ConfigInvalid("a serverless endpoint has no queue, no inference components and no data capture")
        if self.serverless.get("MemorySizeInMB", 0) % _SERVERLESS_STEP_MB:
            raise ConfigInvalid("MemorySizeInMB takes 1024 to 6144, in steps of 1024")

    def _merged(self, operation: str) -> dict[str, Any]:
        found: dict[str, Any] = merged(_REQUIRED[operation], self.settings.get(operation, {}))
        return found

    @property
    def _config(self) -> dict[str, Any]:
        return self._merged("CreateEndpointConfig")

    @property
    def _variant(self) -> dict[str, Any]:
        found: dict[str, Any] = self._config["ProductionVariants"][0]
        return found

    @property
    def instances(self) -> int:
        return int(self._variant["InitialInstanceCount"])

    @property
    def routing(self) -> dict[str, Any]:
        found: dict[str, Any] = self._variant.get("RoutingConfig", {})
        return found

    @property
    def serverless(self) -> dict[str, Any]:
        """The ServerlessConfig; empty for an endpoint with instances."""
        found: dict[str, Any] = self._variant.get("ServerlessConfig", {})
        return found

    @property
    def asynchronous(self) -> dict[str, Any]:
        """The AsyncInferenceConfig; empty for an endpoint that answers at once."""
        found: dict[str, Any] = self._config.get("AsyncInferenceConfig", {})
        return found

    @property
    def component(self) -> dict[str, Any]:
        """The parameters of CreateInferenceComponent; empty for an endpoint without components."""
        return self._merged("CreateInferenceComponent") if "CreateInferenceComponent" in self.settings else {}

    @property
    def transform(self) -> dict[str, Any]:
        found: dict[str, Any] = self.settings.get("CreateTransformJob", {})
        return found

    @property
    def variables(self) -> dict[str, str]:
        found: dict[str, str] = self._container.get("Environment", {})
        return found

    @property
    def _container(self) -> dict[str, Any]:
        found: dict[str, Any] = self._merged("CreateModel").get("PrimaryContainer", {})
        return found

    @property
    def scraped(self) -> tuple[str, float]:
        """The path of the metrics and the seconds between scrapes; an empty path if the platform scrapes none."""
        metrics = self._config.get("MetricsConfig", {})
        if self.serverless or not metrics.get("EnableDetailedObservability", True):
            return "", 0.0
        endpoints = self._container.get("ContainerMetricsConfig", {}).get("MetricsEndpoints", [])
        page = endpoints[0] if endpoints else {"MetricsEndpointPath": "/metrics"}
        every = page.get("MetricPublishFrequencyInSeconds", metrics.get("MetricPublishFrequencyInSeconds", 60))
        return str(page["MetricsEndpointPath"]), float(every)

    def pays_twice(self, variables: Mapping[str, str]) -> bool:
        """Whether the metrics are scraped and embedded in the log as well."""
        return bool(self.scraped[0]) and variables.get(_METRICS_LOG) == "emf"

    def limits(self, limits: PlatformLimits) -> PlatformLimits:
        """The limits of the kind of endpoint, given those of one that answers at once."""
        if self.asynchronous:
            return replace(limits, body_bytes=_ASYNC_BODY, invoke_s=_ASYNC_S)
        if self.serverless:
            return replace(limits, body_bytes=_SERVERLESS_BODY, startup_s=min(limits.startup_s, _SERVERLESS_START_S))
        return limits
