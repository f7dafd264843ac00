"""Classification: an output is replaced by its largest values with their indices and labels.

Source: docs/spec/http.md section 6 (classification).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import Array, bytes_array, element_count

LARGEST_ITEM = 1_000_000
_UNSUPPORTED = frozenset({"BOOL", "BYTES", "FP16", "BF16"})


def classify(output: OutputTensor, k: int, max_batch_size: int, labels: Sequence[str]) -> OutputTensor:
    """The `k` largest values of each batch item, in descending order, as BYTES `value:index[:label]`.

    The shape is [min(k, elements)], after the batch dimension if the model batches. Equal values are in the order of
    their indices; NaN is last. Raises InvalidRequest for an output that cannot be ranked.
    """
    if output.datatype in _UNSUPPORTED:
        raise InvalidRequest(f"class result not available for output due to unsupported type '{output.datatype}'")
    batch = output.shape[:1] if max_batch_size > 0 else ()
    elements = element_count(output.shape[len(batch) :])
    if elements > LARGEST_ITEM:
        raise InvalidRequest("classification output tensor too large")
    count = min(k, elements)
    rows = output.array.reshape(element_count(batch), elements)
    classes: list[bytes] = []
    for row in rows:
        indices = top_indices(row, count)
        values = row[indices].tolist()
        texts = map("%f".__mod__, values) if row.dtype.kind == "f" else map(str, values)
        for text, index in zip(texts, indices.tolist(), strict=True):
            label = labels[index] if index < len(labels) else ""
            classes.append((f"{text}:{index}:{label}" if label else f"{text}:{index}").encode())
    shape = (*batch, count)
    return OutputTensor(output.name, "BYTES", shape, bytes_array(classes, shape))


def classified(output: OutputTensor, classes: int, spec: ModelSpec) -> OutputTensor:
    """The output itself if `classes` is 0, else its `classes` largest values. Raises InvalidRequest."""
    if not classes:
        return output
    return classify(output, classes, spec.max_batch_size, spec.outputs[output.name].labels)


def top_indices(values: Array, k: int) -> Array:
    """The indices of the `k` largest of `values`, one-dimensional, largest first; ties by index, NaN last."""
    if k == 0:
        return np.empty(0, dtype=np.intp)
    # Ascending in these keys is descending in the values. Inverting an integer's bits cannot overflow, negating it can.
    keys = -values if values.dtype.kind == "f" else ~values
    bound = np.partition(keys, k - 1)[k - 1]
    if bound != bound:  # NaN is among the k largest: there are fewer than k numbers
        return np.argsort(keys, kind="stable")[:k]
    # Only values that may be among the k largest are sorted, which is fast; all ties stay, which keeps the order right.
    candidates = np.flatnonzero(keys <= bound)
    return candidates[np.argsort(keys[candidates], kind="stable")[:k]]
