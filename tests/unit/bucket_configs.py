"""Configurations with batch buckets, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.backend_serving import config_of, spec_of, tensor_text
from trident.core.config.spec import BucketSpec, ModelSpec


def bucket_text(
    *,
    max_batch_size: int = 8,
    datatype: str = "FP32",
    dims: Sequence[int] = (-1,),
    out_dims: Sequence[int] | None = None,
    more: str = "",
    **parameters: str,
) -> str:
    """INPUT0 -> OUTPUT0, both variable, with `parameters`."""
    text = f"max_batch_size: {max_batch_size}\n{tensor_text('input', 'INPUT0', datatype, dims, more)}"
    text += tensor_text("output", "OUTPUT0", datatype, dims if out_dims is None else out_dims)
    for name, value in parameters.items():
        text += f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
    return text


def bucket_model(text: str) -> tuple[ModelSpec, BucketSpec]:
    """The spec of a configuration that has buckets, and its buckets."""
    spec = spec_of(config_of(text))
    assert spec.buckets is not None
    return spec, spec.buckets
