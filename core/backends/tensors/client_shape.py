"""The shape in which the client sees an output."""

from __future__ import annotations

from core.config.model_spec import OutputSpec
from core.inference.tensors import Shape, element_count


def client_shape(output: OutputSpec, shape: Shape, batching: bool) -> Shape:
    """The shape for an output that the model gave in `shape`: the configured reshape, or the dims without any.

    Variable dimensions are matched by position. A shape that contradicts the configuration stays.
    """
    if output.model_dims is None:
        return shape
    batch, dims = (shape[:1], shape[1:]) if batching else ((), shape)
    if len(dims) != len(output.model_dims):
        return shape
    variable = iter([dim for dim, configured in zip(dims, output.model_dims, strict=True) if configured == -1])
    wanted = (*batch, *(next(variable, 1) if dim == -1 else dim for dim in output.dims))
    return wanted if element_count(wanted) == element_count(shape) else shape
