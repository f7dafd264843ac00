"""The settings that say who may use the ports, for HTTP and gRPC alike.

Source: docs/spec/server-options.md "In Trident".
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option
from app.settings.option_types import FILE, choice

_SECTION = "Access"
SCOPES = ("admin", "all")


@dataclass(frozen=True, kw_only=True, repr=False)
class AccessSettings:
    """Part of ServerSettings."""

    auth_token_file: str = option(
        "",
        "auth-token-file",
        FILE,
        "File with the bearer tokens that clients of the HTTP and gRPC ports must send, one a line; a change of it is "
        "noticed.",
        section=_SECTION,
        own=True,
    )
    auth_token_scope: str = option(
        "all",
        "auth-token-scope",
        choice("auth-token-scope", *SCOPES),
        "What needs a token: all but health, or only what changes the server (admin: shared-memory, model-repository, "
        "trace, logging).",
        section=_SECTION,
        own=True,
    )
