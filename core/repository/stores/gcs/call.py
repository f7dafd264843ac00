"""One call to Cloud Storage, and the errors that its failures become."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import AccessRefused, RepositoryUnavailable


@dataclass(frozen=True, slots=True)
class GcsCall:
    """A call as its error messages name it.

    `name` is the API method, which is also the name of the permission that it needs. `target` is the URI that the call
    is about. `missing` is the message for a 404.
    """

    name: str
    target: str
    missing: str

    def __str__(self) -> str:
        return f"{self.name} on {self.target}"

    def failed(self, cause: str) -> RepositoryUnavailable:
        return RepositoryUnavailable(f"{self} failed: {cause}")

    def refused(self, identity: str, status: int, hint: str) -> AccessRefused:
        """The error for an identity that lacks the permission, or for missing credentials."""
        return AccessRefused(
            f"{self} was refused to {identity} (HTTP {status}): it needs the permission {self.name}", hint=hint
        )

    def gone(self) -> RepositoryUnavailable:
        """The error for an object or a bucket that does not exist, or no longer exists as it was listed."""
        return RepositoryUnavailable(self.missing)
