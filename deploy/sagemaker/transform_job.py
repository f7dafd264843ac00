"""A batch transform job: all objects below a prefix through the model, an answer beside each.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adapters.sagemaker.settings import BatchStrategy
from deploy.sagemaker.errors import BadSettings
from deploy.sagemaker.names import tagged
from deploy.sagemaker.plan import Call

_MOST_IN_FLIGHT_MB = 100
_STRATEGIES = {each.value: "".join(part.title() for part in each.split("_")) for each in BatchStrategy}
# A record has a length and a checksum around it.
_FRAMED = ("RecordIO", "TFRecord")
STRATEGIES = tuple(_STRATEGIES.values())


@dataclass(frozen=True, kw_only=True)
class Records:
    """How objects become records and answers become objects. Empty texts leave it to the platform.

    `split` None: an object is one body. `strategy` MultiRecord: as many records in a body as `max_payload_mb` has room
    for. The filters and `join` are JSONPath over records and answers.
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
            raise BadSettings("--split None makes one record of an object", hint="add --strategy SingleRecord")
        if self.split in _FRAMED and self.strategy == "MultiRecord":
            raise BadSettings(
                f"--split {self.split} leaves the frames around records in place, and the server reads none",
                hint="with --strategy SingleRecord the platform takes them off",
            )
        if self.join == "Input" and self.assemble != "Line":
            raise BadSettings("--join Input puts answers beside records, line by line", hint="add --assemble Line")

    def processing(self) -> dict[str, Any]:
        filters = {"InputFilter": self.input_filter, "OutputFilter": self.output_filter}
        given = {name: text for name, text in filters.items() if text}
        return {**given, **({"JoinSource": self.join} if self.join != "None" or given else {})}


@dataclass(frozen=True, kw_only=True)
class TransformJob:
    """`source` is an s3:// prefix, or the manifest of one; `output` an s3:// prefix.

    Bodies have `max_payload_mb` at most, and `max_concurrent` of them are on their way to one instance. 0 concurrent:
    what the container says of itself.
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
                f"{self.max_concurrent} bodies of {self.max_payload_mb} MB at once",
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
