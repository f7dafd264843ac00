"""The canonical codes of Google's APIs.

Source: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
"""

from __future__ import annotations

from enum import IntEnum


class CanonicalCode(IntEnum):
    """The code of an error: its name in answers of the API, its number in the output of batch jobs."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16
