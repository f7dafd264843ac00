"""The labels that all series of a model version have."""

from __future__ import annotations

import re

from core.observability.metrics.snapshot import ModelMetrics

_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")


def model_labels(entry: ModelMetrics) -> dict[str, str]:
    """The labels of a version. A tag may be any text; a name that Prometheus rejects would spoil the whole page."""
    labels = {f"_{_NOT_IN_LABELS.sub('_', tag)}": value for tag, value in entry.tags.items()}
    labels |= {"model": entry.model, "version": str(entry.version)}
    if entry.namespace is not None:
        labels["namespace"] = entry.namespace
    return labels
