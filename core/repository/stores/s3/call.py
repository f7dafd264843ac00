"""One call to S3 in the words of its error messages: who asked for what, and what it takes to be allowed to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import RepositoryUnavailable

_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_LONGEST_MESSAGE = 500
_MASK = "[secret]"

# Triton's text when it cannot look into the bucket. Source: docs/spec/repository.md section 1.10.
_NO_CLIENT = "Unable to create S3 filesystem client. Check account credentials."


@dataclass(frozen=True, slots=True)
class S3Call:
    """What is asked of `bucket`. `action` is the permission's name; `key` the whole key, empty for the bucket itself.

    `shown` is the URI for a reader. `opening` is the first look into the bucket: its failure begins as Triton's does.
    """

    action: str
    shown: str
    bucket: str
    key: str = ""
    opening: bool = False

    @property
    def target(self) -> str:
        """The URI on one line, whatever is in the key."""
        return _one_line(self.shown)

    @property
    def permission(self) -> str:
        """What a policy must allow."""
        return _one_line(f"{self.action} on arn:aws:s3:::{self.bucket}{'/' + self.key if self.key else ''}")

    def failed(self, identity: str, exception: str, message: str, hint: str | None = None) -> RepositoryUnavailable:
        """For a failure that `exception` and `message` (without secrets, see `safe_text`) describe."""
        who = f"{self.action} on {self.target} as {identity}"
        what = f"Exception: '{exception}' Message: '{message}'"
        return RepositoryUnavailable(
            f"{_NO_CLIENT} {what} ({who})" if self.opening else f"{who} failed. {what}", hint=hint
        )

    def refused(self, identity: str, exception: str, message: str) -> RepositoryUnavailable:
        """As `failed`, where a permission or a credential is missing."""
        error = self.failed(identity, exception, message)
        return RepositoryUnavailable(
            f"{error.message}; it needs the permission {self.permission}",
            hint=f"grant {self.permission} to this identity, or give credentials of one that has it",
        )

    def gone(self, how: str) -> RepositoryUnavailable:
        """The object is not what was listed."""
        return RepositoryUnavailable(
            f"{self.target} was {how} since it was listed", hint="load again: it lists the repository afresh"
        )


def safe_text(text: str, secrets: Iterable[str]) -> str:
    """What a storage said, on one line, not longer than a reader wants, and without `secrets` that it may repeat."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, _MASK)
    return _one_line(text)[:_LONGEST_MESSAGE]


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", text)
