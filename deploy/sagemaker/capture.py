"""Data capture: the requests and responses that the platform writes to S3.

Source: docs/spec/deploy.md section 4 "DataCaptureConfig".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
