"""What can go wrong with a deployment.

DeployError
├── BadSettings     what was asked for cannot be right; no call was made
├── CallFailed      AWS refused a call, or could not be reached
├── NotReached      the endpoint or the job did not come into the state that was waited for
└── SmokeFailed     the endpoint answers, but not as it must
"""

from __future__ import annotations


class DeployError(Exception):
    """`str()` is what happened; `hint` says what to do about it, "" where that is plain."""

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
