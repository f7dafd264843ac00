"""Data capture: which calls and answers the platform writes to S3, and how.

Source: docs/spec/deploy.md section 4 "DataCaptureConfig".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# What is listed is written as text, everything else as base64: so it is for npy, npz and the binary tensors, whose type
# has a length in it and would never match a list anyway.
CSV_TYPES = ("text/csv",)
JSON_TYPES = ("application/json", "application/jsonlines")


@dataclass(frozen=True, kw_only=True)
class Capture:
    """`destination` is an s3:// prefix. `json_types` are further content types that are JSON."""

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
