"""One call to S3, and the errors that its failures become: who asked for what, and which permission that needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import AccessRefused, RepositoryUnavailable

_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_LONGEST_MESSAGE = 500
_MASK = "[secret]"

# Triton's text when it cannot open the bucket. Source: docs/spec/repository.md section 1.10.
_NO_CLIENT = "Unable to create S3 filesystem client. Check account credentials."
_NO_BUCKET = "NoSuchBucket"
# The ends of botocore's names for a storage that cannot be reached.
_UNREACHABLE = ("ConnectionError", "TimeoutError", "ConnectionClosedError", "SSLError")
_NO_STORAGE = "the storage cannot be reached: check the endpoint with its port and http(s), the network and the proxy"


@dataclass(frozen=True, slots=True)
class S3Call:
    """A call as its error messages name it.

    `action` is the name of the permission. `shown` is the URI for a reader. `key` is the whole key, empty for a call on
    the bucket itself. `opening` marks the first listing of the bucket: its refusal begins with Triton's text.
    """

    action: str
    shown: str
    bucket: str
    key: str = ""
    opening: bool = False

    @property
    def target(self) -> str:
        """The URI on one line; keys may contain line ends."""
        return _one_line(self.shown)

    @property
    def permission(self) -> str:
        """The statement that a policy must allow."""
        return _one_line(f"{self.action} on arn:aws:s3:::{self.bucket}{'/' + self.key if self.key else ''}")

    def failed(self, identity: str, exception: str, message: str) -> RepositoryUnavailable:
        """The error for a failure that `exception` and `message` describe; both without secrets, see `safe_text`.

        It is none of the credentials: Triton's text, which sends people to them, is for refusals.
        """
        text = f"{self.action} on {self.target} as {identity} failed. Exception: '{exception}' Message: '{message}'"
        if exception == _NO_BUCKET:
            return RepositoryUnavailable(
                f"the bucket '{self.bucket}' does not exist: {text}",
                hint="check the name of the bucket, and that the endpoint is the one that has it",
            )
        return RepositoryUnavailable(text, hint=_NO_STORAGE if exception.endswith(_UNREACHABLE) else None)

    def refused(self, identity: str, exception: str, message: str) -> AccessRefused:
        """The error for a missing permission or credential; arguments as in `failed`."""
        who = f"{self.action} on {self.target} as {identity}"
        what = f"Exception: '{exception}' Message: '{message}'"
        text = f"{_NO_CLIENT} {what} ({who})" if self.opening else f"{who} failed. {what}"
        return AccessRefused(
            f"{text}; it needs the permission {self.permission}",
            hint=f"grant {self.permission} to this identity, or give credentials of one that has it",
        )

    def gone(self, how: str) -> RepositoryUnavailable:
        """The error for an object that is no longer as it was listed; `how` is "removed" or "changed"."""
        return RepositoryUnavailable(
            f"{self.target} was {how} since it was listed", hint="load again: it lists the repository afresh"
        )

    def answered_by_another(self) -> RepositoryUnavailable:
        """The error for an answer that is not S3's."""
        return RepositoryUnavailable(
            f"{self.action} on {self.target}: the answer is not one of S3",
            hint="check the endpoint, its port and http(s)",
        )


def safe_text(text: str, secrets: Iterable[str]) -> str:
    """A text from the storage on one line, without `secrets`, cut to a readable length."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, _MASK)
    return _one_line(text)[:_LONGEST_MESSAGE]


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", text)
