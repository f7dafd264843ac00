"""The requests that the access log has."""

from __future__ import annotations

from enum import Enum


class LogAccess(Enum):
    """Which requests are logged. The value is the text of the option; probes are those of health and metrics."""

    NONE = "false"
    REQUESTS = "true"
    ALL = "all"
