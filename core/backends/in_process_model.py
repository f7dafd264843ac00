"""One loaded version of a model whose framework runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from trident.core.backends.backend import BackendInstance, LoadContext, OnChange
from trident.core.backends.in_process import DeviceWeights, Failures, Run, Weights, length_axes, make_instance
from trident.core.config.placement import DeviceKind, Placement
from trident.core.observability.metrics.snapshot import ModelProcessMetrics


class InProcessModel:
    """Implements BackendModel. Loader threads, several at once.

    `load` loads the weights onto the device of a placement: one set for all instances on the device. `make_run` makes
    what one instance runs from them. Both raise a ServerError. `described` are cells of the start table besides
    `device`. `may_run_inline` holds for the instances on a CPU (`BackendInstance`). The weights for all placements of
    `context` are loaded at once.
    """

    trouble = ""

    def __init__(
        self,
        context: LoadContext,
        load: Callable[[Placement], Weights],
        make_run: Callable[[Weights, Placement], Run],
        failures: Failures,
        described: Mapping[str, str],
        *,
        may_run_inline: bool = False,
    ) -> None:
        self.labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})
        self._config = context.config
        self._spec = context.spec
        self._make_run = make_run
        self._failures = failures
        self._described = described
        self._may_run_inline = may_run_inline
        buckets = context.spec.buckets
        self._axes = {} if buckets is None else length_axes(context.spec, buckets)
        wanted = {placement.device: placement for placement in context.placements}
        self._weights = DeviceWeights(load, {device: load(placement) for device, placement in wanted.items()})

    def describe(self) -> dict[str, str]:
        return {"device": ", ".join(self._weights.loaded), **self._described}

    def instance(self, placement: Placement) -> BackendInstance:
        """An instance on the weights of its device, which are loaded if there are none. Raises a ServerError."""
        run = self._make_run(self._weights.of(placement), placement)
        return make_instance(
            placement,
            self._spec,
            self._config,
            run,
            self._failures,
            self._axes,
            may_run_inline=self._may_run_inline and placement.kind is DeviceKind.CPU,
        )

    def watch(self, on_change: OnChange) -> None:
        """An instance can always execute."""

    def check_ready(self) -> None:
        """It is always ready."""

    def processes(self) -> list[ModelProcessMetrics]:
        return []

    def retain(self, devices: Iterable[str]) -> None:
        self._weights.retain(devices)

    def close(self) -> None:
        self._weights.close()
