"""The settings that the HTTP applications take."""

from __future__ import annotations

from app.settings.server import ServerSettings
from core.errors import ErrorHints
from core.frontend.auth_tokens import AuthTokens
from core.frontend.restricted_apis import parse_restricted
from core.http.options import HttpOptions


def http_options(settings: ServerSettings, tokens: AuthTokens | None = None) -> HttpOptions:
    """`tokens` are those that a client must have; None on a port whose platform says who may call."""
    return HttpOptions(
        max_input_size=settings.http_max_input_size,
        header_forward_pattern=settings.http_header_forward_pattern,
        restricted=parse_restricted(settings.http_restricted_api),
        tokens=tokens,
        allow_client_shm=settings.allow_client_shm,
        health_json=settings.health_body == "json",
        error_hints=ErrorHints(settings.error_hints),
    )
