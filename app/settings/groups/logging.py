"""The settings of the log.

Source: docs/spec/server-options.md section 2 "Logging".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.settings.option import option
from app.settings.option_types import BOOLEAN, FILE, LEVEL, NOT_ZERO, Kind, choice

if TYPE_CHECKING:
    from core.observability.logging import LogOptions

_SECTION = "Logging"
_ACCESS = Kind("true|false|all", lambda text: text if text == "all" else "true" if BOOLEAN.parse(text) else "false")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoggingSettings:
    """Part of ServerSettings."""

    log_verbose: int = option(
        0, "log-verbose", LEVEL, "Show verbose messages up to this level; 0 shows none.", section=_SECTION
    )
    log_info: bool = option(True, "log-info", BOOLEAN, "Whether informational messages are shown.", section=_SECTION)
    log_warning: bool = option(True, "log-warning", BOOLEAN, "Whether warnings are shown.", section=_SECTION)
    log_error: bool = option(True, "log-error", BOOLEAN, "Whether errors are shown.", section=_SECTION)
    log_format: str = option(
        "default",
        "log-format",
        choice("log-format", "default", "ISO8601", "json"),
        "Format of a log line; json is one object per line.",
        section=_SECTION,
    )
    log_file: str = option(
        "",
        "log-file",
        FILE,
        "File to which the log is appended; SIGUSR1 has it opened again.",
        section=_SECTION,
        shown_default="the console: warnings and errors on stderr, other messages on stdout",
    )
    log_access: str = option(
        "false",
        "log-access",
        _ACCESS,
        "Whether requests are logged after their responses, with status, duration, request id, model and batch "
        "size: true logs all but health probes and scrapes of metrics, all logs those, too.",
        section=_SECTION,
        own=True,
    )
    log_escape: bool = option(
        True,
        "",
        NOT_ZERO,
        "Whether messages are quoted as JSON strings, so that no message can look like another log line; only 0 "
        "turns the quoting off.",
        section=_SECTION,
        variable="TRITON_SERVER_ESCAPE_LOG_MESSAGES",
    )

    @property
    def log_options(self) -> LogOptions:
        from core.observability.logging import LogOptions

        return LogOptions(
            verbose=self.log_verbose,
            info=self.log_info,
            warning=self.log_warning,
            error=self.log_error,
            format=self.log_format,
            file=self.log_file,
            escape=self.log_escape,
            access=self.log_access,
        )
