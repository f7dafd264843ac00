"""The name of a repository in a call of the model repository: a server has one set of repositories, without names.

Source: docs/spec/http.md section 8.
"""

from __future__ import annotations

from core.errors import Unsupported


def refuse_repository(name: str) -> None:
    """Raise Unsupported if a call names a repository."""
    if name:
        raise Unsupported("'repository_name' specification is not supported")
