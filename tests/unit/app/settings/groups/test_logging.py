from __future__ import annotations

from trident.app.settings.groups import LoggingSettings
from trident.core.observability.log import LogOptions


def test_the_group_gives_the_options_of_the_log() -> None:
    settings = LoggingSettings(log_verbose=1, log_info=False, log_format="json", log_file="x", log_escape=False)
    assert settings.log_options == LogOptions(verbose=1, info=False, format="json", file="x", escape=False)
