"""The kind of a deployment: one of the kinds of endpoint, or a batch transform job.

Source: docs/spec/deploy.md section 4, docs/spec/sagemaker.md sections A5 and A6.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    REAL_TIME = "real-time"
    MULTI_MODEL = "multi-model"
    ASYNC = "async"
    SERVERLESS = "serverless"
    BATCH = "batch"

    @property
    def has_endpoint(self) -> bool:
        return self is not Kind.BATCH

    @property
    def has_instances(self) -> bool:
        """Whether the user chooses instances; serverless endpoints have none."""
        return self is not Kind.SERVERLESS
