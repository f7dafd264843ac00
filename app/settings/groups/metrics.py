"""The settings of the metrics page, its port, and the metrics log.

Source: docs/spec/server-options.md section 2 "Metrics"; docs/spec/metrics-log.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import ADDRESS, BOOLEAN, PORT, TEXT, choice, number, setting

_SECTION = "Metrics"


@dataclass(frozen=True, kw_only=True, repr=False)
class MetricsSettings:
    """Part of ServerSettings."""

    allow_metrics: bool = option(
        True, "allow-metrics", BOOLEAN, "Whether the metrics port is opened.", section=_SECTION
    )
    allow_gpu_metrics: bool = option(
        True, "allow-gpu-metrics", BOOLEAN, "Whether the metrics include the GPUs.", section=_SECTION
    )
    allow_cpu_metrics: bool = option(
        True, "allow-cpu-metrics", BOOLEAN, "Whether the metrics include CPU and memory.", section=_SECTION
    )
    metrics_address: str = option(
        "",
        "metrics-address",
        ADDRESS,
        "Address of the metrics port.",
        section=_SECTION,
        shown_default="that of --http-address",
    )
    metrics_port: int = option(8002, "metrics-port", PORT, "The metrics port.", section=_SECTION)
    metrics_interval_ms: float = option(
        2000.0,
        "metrics-interval-ms",
        number(1),
        "Milliseconds for which the metrics page shows the same hardware values before they are read again.",
        section=_SECTION,
    )
    metrics_config: tuple[str, ...] = repeated(
        "metrics-config",
        setting("metrics-config", ""),
        "counter_latencies=false leaves out the request durations and keeps all model counters at 0; "
        "histogram_latencies=true adds histograms of the durations, summary_latencies=true their quantiles in the last "
        "minute; summary_quantiles names them, as in 0.5:0.05,0.99:0.001.",
        section=_SECTION,
    )

    metrics_log: str = option(
        "none",
        "metrics-log",
        choice("metrics-log", "none", "emf", "gcp"),
        "Write metrics to stdout, for platforms that scrape no page. emf is the embedded metric format of CloudWatch, "
        "gcp the structure of Google Cloud Logging.",
        section=_SECTION,
        own=True,
    )
    metrics_log_interval_secs: float = option(
        60.0,
        "metrics-log-interval-secs",
        number(1),
        "Seconds that a line of --metrics-log covers.",
        section=_SECTION,
        own=True,
    )
    metrics_log_namespace: str = option(
        "Trident",
        "metrics-log-namespace",
        TEXT,
        "Namespace of the metrics in CloudWatch.",
        section=_SECTION,
        own=True,
    )
    metrics_log_dimension: tuple[str, ...] = repeated(
        "metrics-log-dimension",
        setting("metrics-log-dimension", ""),
        "A dimension of all metrics in CloudWatch, or a label of the entries in Cloud Logging, such as "
        "endpoint=my-endpoint.",
        section=_SECTION,
        own=True,
    )

    @property
    def metrics_log_dimensions(self) -> dict[str, str]:
        """The values of --metrics-log-dimension by name."""
        return split_metrics_settings(self.metrics_log_dimension)

    @property
    def metrics_settings(self) -> dict[str, str]:
        """The values of --metrics-config by name."""
        return split_metrics_settings(self.metrics_config)


def split_metrics_settings(texts: Iterable[str]) -> dict[str, str]:
    """Values of `<name>=<value>` by name; the last of several values for one name counts."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}
