"""The metrics log that the settings ask for, in the process that has the engine."""

from __future__ import annotations

from app.settings.server import ServerSettings
from core.engine.in_process import InferenceEngine
from core.observability.metrics_log.cloud_logging import CloudLogging
from core.observability.metrics_log.embedded_metrics import EmbeddedMetrics
from core.observability.metrics_log.metrics_log import Format, MetricsLog


def make_metrics_log(settings: ServerSettings, engine: InferenceEngine) -> MetricsLog | None:
    """None if --metrics-log is none."""
    dimensions = settings.metrics_log_dimensions
    formats: dict[str, Format] = {
        "emf": EmbeddedMetrics(settings.metrics_log_namespace, dimensions),
        "gcp": CloudLogging(dimensions),
    }
    chosen = formats.get(settings.metrics_log)
    if chosen is None:
        return None
    return MetricsLog(engine.metrics, engine.is_ready, chosen, settings.metrics_log_interval_secs)
