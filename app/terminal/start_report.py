"""The log of a start: the settings, the models, and the addresses of the services.

Source: docs/spec/server-options.md section 4, docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.settings.precedence import DEFAULT
from app.settings.server import ServerSettings
from app.settings.services import Service, spell_endpoint
from app.terminal.console_tables import ModelRow, addresses_table, models_table, options_table
from core.lifecycle.overview import VersionOverview
from core.observability.logging import log_table

_log = logging.getLogger("trident.server")

# Triton's names of the services, for the lines that tools wait for.
_STARTED = {
    Service.GRPC: "GRPCInferenceService",
    Service.HTTP: "HTTPService",
    Service.SAGEMAKER: "Sagemaker HTTPService",
    Service.VERTEX_AI: "Vertex AI HTTPService",
    Service.METRICS: "Metrics Service",
}


def log_settings(settings: ServerSettings) -> None:
    """Log the options that are not at their defaults, and the settings of the platforms."""
    given = [row for row in settings.describe() if row.source != DEFAULT]
    log_table(_log, "options that are not at their defaults", options_table(given))
    if settings.allow_sagemaker and settings.sagemaker is not None:
        log_table(_log, "SageMaker's settings", options_table(settings.sagemaker.describe()))
    if settings.vertex is not None:
        log_table(_log, "Vertex AI's settings", options_table(settings.vertex.describe()))


def log_models(rows: Sequence[ModelRow]) -> None:
    log_table(_log, "models", models_table(rows))


def log_services(settings: ServerSettings) -> None:
    """Log the addresses of the services that have started."""
    services = settings.services()
    addresses = [(name[0].upper() + name[1:], spell_endpoint(*place)) for name, place in services.items()]
    log_table(_log, "addresses", addresses_table(addresses))
    for service, place in services.items():
        _log.info("Started %s at %s", _STARTED[service], spell_endpoint(*place))


def model_row(line: VersionOverview) -> ModelRow:
    entry = line.entry
    return ModelRow(
        entry.name,
        "" if entry.version is None else str(entry.version),
        "" if entry.state is None else entry.state.value,
        line.device,
        line.execution_provider,
        entry.reason,
    )
