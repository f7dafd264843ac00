"""Decides which dimensions of outputs are cut back to the length of a request.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType

from core.config.model_spec import BucketSpec, ModelSpec

_log = logging.getLogger("trident.backends")
_NO_NAMES: Mapping[str, Collection[int]] = MappingProxyType({})


def length_axes(
    spec: ModelSpec, buckets: BucketSpec, named: Mapping[str, Collection[int]] = _NO_NAMES
) -> dict[str, tuple[int, ...]]:
    """The dimensions of each output that are as long as the padded inputs, the batch dimension counted.

    All variable dimensions of the outputs that the configuration names, and of the others those in `named`, of which
    the graph says so. Other variable dimensions are logged, because they stay as the model makes them.
    """
    found: dict[str, tuple[int, ...]] = {}
    if not buckets.lengths:
        return found
    batch_axes = 1 if spec.max_batch_size > 0 else 0
    for name, output in spec.outputs.items():
        dims = output.dims if output.model_dims is None else output.model_dims
        variable = tuple(batch_axes + at for at, dim in enumerate(dims) if dim == -1)
        axes = variable
        if name not in buckets.outputs:
            axes = tuple(axis for axis in variable if axis in named.get(name, ()))
            if axes != variable:
                _log.warning(
                    "output '%s' of model '%s' has variable dimensions of which the graph does not say that they are "
                    "as long as the inputs: they are not cut back to the length of a request; if they should be, name "
                    "the output in LENGTH_OUTPUTS",
                    name,
                    spec.name,
                )
        if axes:
            found[name] = axes
    return found
