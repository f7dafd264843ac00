"""Makes the instances of models whose framework runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from core.backends.base import BackendInstance
from core.backends.in_process.bound_instance import BoundInstance, BoundRun, may_bind
from core.backends.in_process.bucketed_instance import BucketedInstance
from core.backends.in_process.instance import Failures, InProcessInstance, Run, RunPlaced
from core.backends.tensors.batch_inputs import batch_inputs
from core.backends.tensors.gatherer import Gatherer
from core.backends.tensors.padded_splitter import PaddedSplitter
from core.backends.tensors.padding_gatherer import PaddingGatherer
from core.backends.tensors.splitter import Splitter, scattered_outputs
from core.backends.tensors.staging_buffer import OnBuffer
from core.config.model_spec import ModelSpec
from core.config.placement import Placement
from core.config.schema import ModelConfig


def make_instance(
    placement: Placement,
    spec: ModelSpec,
    config: ModelConfig,
    run: Run,
    failures: Failures,
    axes: Mapping[str, tuple[int, ...]],
    *,
    scalars: frozenset[str] = frozenset(),
    on_buffer: OnBuffer | None = None,
    run_options: Any = None,
    may_run_inline: bool = False,
    on_close: Callable[[], None] | None = None,
    bound_run: BoundRun | None = None,
    run_placed: RunPlaced | None = None,
) -> BackendInstance:
    """An instance that pads its batches if the model has buckets; then `axes` are those of `length_axes`.

    `on_close` frees what `run` holds. `bound_run` runs on tensors in memory of the GPU, and `run_placed` writes outputs
    where they are sent from, where the tensors of the model allow it.
    """
    described, buckets = batch_inputs(config, spec.name), spec.buckets
    if buckets is None:
        gatherer = Gatherer(spec, scalars=scalars, batch_inputs=described, on_buffer=on_buffer)
        splitter = Splitter(spec, scattered_outputs(config))
        binds = not scalars and may_bind(spec, config)
        if bound_run is not None and binds:
            return BoundInstance(
                placement,
                spec,
                gatherer,
                splitter,
                run,
                failures,
                bound_run=bound_run,
                run_options=run_options,
                on_close=on_close,
            )
        return InProcessInstance(
            placement,
            spec,
            gatherer,
            splitter,
            run,
            failures,
            run_options=run_options,
            may_run_inline=may_run_inline,
            on_close=on_close,
            run_placed=run_placed if binds else None,
        )
    return BucketedInstance(
        placement,
        spec,
        PaddingGatherer(spec, buckets, scalars=scalars, batch_inputs=described, on_buffer=on_buffer),
        PaddedSplitter(spec, buckets, axes),
        run,
        failures,
        run_options=run_options,
        may_run_inline=may_run_inline,
        on_close=on_close,
    )
