"""The states of a model's versions for the metrics page."""

from __future__ import annotations

from collections.abc import Iterator

from core.lifecycle.model import Model
from core.lifecycle.state import UNLOADED, ModelState
from core.observability.metrics.snapshot import VersionStateMetrics


def version_states(model: Model) -> Iterator[VersionStateMetrics]:
    """One entry per version that serves, is being loaded or unloaded, or has failed.

    Versions that were unloaded have none: then UNAVAILABLE always means a failure, and the page does not grow with
    every model that was ever loaded.
    """
    namespace = model.key.namespace or None
    if not model.versions and model.problem:
        yield VersionStateMetrics(
            model=model.key.name, version="", state=ModelState.UNAVAILABLE.value, namespace=namespace
        )
    for number, version in sorted(model.versions.items()):
        if version.state.reason != UNLOADED:
            yield VersionStateMetrics(
                model=model.key.name, version=str(number), state=version.state.current.value, namespace=namespace
            )
