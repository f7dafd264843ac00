"""The errors of a deployment.

DeployError
├── BadSettings     invalid settings; no call was made
├── CallFailed      AWS refused a call or could not be reached
├── NotReached      the endpoint or the job did not reach the expected state
└── SmokeFailed     the endpoint gave a wrong answer
"""

from __future__ import annotations

from enum import StrEnum


class DeployError(Exception):
    """`str()` says what happened; `hint` says what to do about it, and may be empty."""

    status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadSettings(DeployError):
    status = 2


class CallFailed(DeployError):
    pass


class NotReached(DeployError):
    pass


class SmokeFailed(DeployError):
    pass


# Source: docs/spec/deploy.md section 4, docs/spec/sagemaker.md sections A5 and A6.


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
