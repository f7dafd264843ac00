"""The settings that the HTTP applications take."""

from __future__ import annotations

from app.settings.server import ServerSettings
from core.frontend.fixed_settings import LOG_DEFAULT
from core.frontend.restricted_apis import parse_restricted
from core.http.options import HttpOptions


def http_options(settings: ServerSettings) -> HttpOptions:
    return HttpOptions(
        max_input_size=settings.http_max_input_size,
        header_forward_pattern=settings.http_header_forward_pattern,
        restricted=parse_restricted(settings.http_restricted_api),
        response_timing=settings.response_timing,
        log_settings={
            **LOG_DEFAULT,
            "log_file": settings.log_file,
            "log_info": settings.log_info,
            "log_warning": settings.log_warning,
            "log_error": settings.log_error,
            "log_verbose_level": settings.log_verbose,
            "log_format": settings.log_format,
        },
    )
