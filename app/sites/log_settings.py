"""The settings of the log as clients of any protocol read them."""

from __future__ import annotations

from collections.abc import Mapping

from app.settings.server import ServerSettings
from core.frontend.fixed_settings import LOG_DEFAULT


def log_settings(settings: ServerSettings) -> Mapping[str, object]:
    return {
        **LOG_DEFAULT,
        "log_file": settings.log_file,
        "log_info": settings.log_info,
        "log_warning": settings.log_warning,
        "log_error": settings.log_error,
        "log_verbose_level": settings.log_verbose,
        "log_format": settings.log_format,
    }
