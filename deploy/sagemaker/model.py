"""The model: an image, the place of its files, and the variables of the container.

Source: docs/spec/deploy.md section 4, docs/spec/sagemaker.md section A4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.sagemaker.environment import container_environment
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.kind import Kind
from deploy.sagemaker.names import content_name, tagged
from deploy.sagemaker.plan import Call

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
