"""A batch transform job: sends all objects below a prefix to the model and writes a response object for each.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.plan import Call, tagged
from trident.adapters.sagemaker.settings import BatchStrategy

_MOST_IN_FLIGHT_MB = 100
_STRATEGIES = {each.value: "".join(part.title() for part in each.split("_")) for each in BatchStrategy}
# These formats frame each record with a length and a checksum.
_FRAMED = ("RecordIO", "TFRecord")
STRATEGIES = tuple(_STRATEGIES.values())


@dataclass(frozen=True, kw_only=True)
class Records:
    """How objects become records and responses become objects. Empty texts select the platform's defaults.

    With `split` None an object is one body. With `strategy` MultiRecord a body holds as many records as fit into
    `max_payload_mb`. The filters are JSONPath over records and responses.
    """

    content_type: str = "text/csv"
    accept: str = ""
    split: str = "Line"
    assemble: str = "Line"
    compression: str = "None"
    strategy: str = "MultiRecord"
    input_filter: str = ""
    output_filter: str = ""
    join: str = "None"

    def check(self) -> None:
        """Raises BadSettings."""
        if self.split == "None" and self.strategy == "MultiRecord":
            raise BadSettings("--split None makes each object one record", hint="add --strategy SingleRecord")
        if self.split in _FRAMED and self.strategy == "MultiRecord":
            raise BadSettings(
                f"--split {self.split} leaves the frames around records, which the server cannot read",
                hint="with --strategy SingleRecord the platform removes them",
            )
        if self.join == "Input" and self.assemble != "Line":
            raise BadSettings("--join Input writes responses beside records, line by line", hint="add --assemble Line")

    def processing(self) -> dict[str, Any]:
        filters = {"InputFilter": self.input_filter, "OutputFilter": self.output_filter}
        given = {name: text for name, text in filters.items() if text}
        return {**given, **({"JoinSource": self.join} if self.join != "None" or given else {})}


@dataclass(frozen=True, kw_only=True)
class TransformJob:
    """A job. `source` is an s3:// prefix or a manifest; `output` is an s3:// prefix.

    A body has at most `max_payload_mb`; at most `max_concurrent` bodies are in flight per instance. With 0 the
    container decides.
    """

    name: str
    model_name: str
    source: str
    output: str
    instance_type: str
    instance_count: int = 1
    source_type: str = "S3Prefix"
    records: Records = field(default_factory=Records)
    max_payload_mb: int = 6
    max_concurrent: int = 0
    invocation_timeout_secs: int = 600
    invocation_retries: int = 3
    kms_key: str = ""

    def call(self, tags: list[dict[str, str]]) -> Call:
        """Raises BadSettings."""
        self.records.check()
        if self.max_payload_mb * max(1, self.max_concurrent) > _MOST_IN_FLIGHT_MB:
            raise BadSettings(
                f"{self.max_concurrent} concurrent bodies of {self.max_payload_mb} MB",
                hint=f"--max-payload-mb times --max-concurrent is at most {_MOST_IN_FLIGHT_MB}",
            )
        client = {
            "InvocationsTimeoutInSeconds": self.invocation_timeout_secs,
            "InvocationsMaxRetries": self.invocation_retries,
        }
        found: dict[str, Any] = {
            "TransformJobName": self.name,
            "ModelName": self.model_name,
            "TransformInput": self._input(),
            "TransformOutput": self._output(),
            "TransformResources": {"InstanceType": self.instance_type, "InstanceCount": self.instance_count},
            "BatchStrategy": self.records.strategy,
            "MaxPayloadInMB": self.max_payload_mb,
            "ModelClientConfig": client,
            **tagged(tags),
        }
        if self.max_concurrent:
            found["MaxConcurrentTransforms"] = self.max_concurrent
        if processing := self.records.processing():
            found["DataProcessing"] = processing
        return Call(service="sagemaker", operation="CreateTransformJob", parameters=found)

    def _input(self) -> dict[str, Any]:
        return {
            "DataSource": {"S3DataSource": {"S3DataType": self.source_type, "S3Uri": self.source}},
            "ContentType": self.records.content_type,
            "CompressionType": self.records.compression,
            "SplitType": self.records.split,
        }

    def _output(self) -> dict[str, Any]:
        accept = {"Accept": self.records.accept or self.records.content_type}
        key = {"KmsKeyId": self.kms_key} if self.kms_key else {}
        return {"S3OutputPath": self.output, "AssembleWith": self.records.assemble, **accept, **key}
