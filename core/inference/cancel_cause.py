"""Why a request ended before its model has answered it."""

from __future__ import annotations

from enum import Enum


class CancelCause(Enum):
    """The value is the label of the metric of cancelled requests."""

    CLIENT = "client"
    """The caller went away, or cancelled its call."""

    DEADLINE = "deadline"
    """The caller's own deadline has passed: `grpc-timeout`, or the time that Vertex AI gives a request."""

    QUEUE_TIMEOUT = "queue_timeout"
    """It waited longer in a queue than the queue policy of its model, or its `timeout`, allows."""

    @property
    def number(self) -> int:
        """What stands for it between processes."""
        return _NUMBERS[self]

    @classmethod
    def of_number(cls, number: int) -> CancelCause:
        """CLIENT for an unknown number."""
        return _BY_NUMBER.get(number, cls.CLIENT)


_BY_NUMBER = dict(enumerate(CancelCause))
_NUMBERS = {cause: number for number, cause in _BY_NUMBER.items()}
