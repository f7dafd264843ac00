"""Checks a request against its model's configuration and converts its inputs to the arrays that the model reads.

The requests of all front ends are checked here. Inputs are checked in reverse order, because Triton reports the last
wrong input first.
Source: docs/spec/model-config.md section 2.11, docs/spec/http.md section 4 "Core validation texts".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Final

import numpy as np

from trident.core.config.spec import BucketSpec, InputSpec, ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, check_correlation_id
from trident.core.inference.response import RegionInput
from trident.core.inference.tensors import (
    BY_NAME,
    BYTES,
    INVALID_DATATYPE,
    MAX_ELEMENTS,
    Array,
    Datatype,
    Shape,
    TensorLayout,
    array_of,
    bytes_array,
    shape_text,
    unpack_bytes,
)
from trident.core.memo import Memo

_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_MAX_FORMS: Final = 256

# The number of items, and the batch key: a value that must be equal within a batch, or None without a condition.
BatchForm = tuple[int, tuple[object, ...] | None]
_Form = tuple[tuple[str, str, Shape, int], ...]


class RequestValidator:
    """Checks requests for one model version; any thread."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._batching = spec.max_batch_size > 0
        # The bytes of an item of the widest array that a batch can become.
        self._largest_item = 16 * max(1, spec.max_batch_size)
        self._has_optional = any(i.optional for i in spec.inputs.values())
        # The batch key: the shapes of variable inputs and, with optional inputs, the names of the given inputs. Of
        # inputs that are padded to a length it has only that length.
        self._buckets = spec.buckets if spec.buckets is not None and spec.buckets.lengths else None
        padded = {} if self._buckets is None else self._buckets.axes
        self._key_inputs = frozenset(
            name for name, i in spec.inputs.items() if -1 in i.dims and not i.allow_ragged_batch and name not in padded
        )
        # Shape tensors are without a batch dimension, and requests with equal values of them share a batch.
        self._shape_inputs = frozenset(name for name, i in spec.inputs.items() if i.is_shape_tensor)
        self._has_key = self._has_optional or self._buckets is not None or bool(self._key_inputs or self._shape_inputs)
        # Clients repeat the form of their requests (names, datatypes, shapes, sizes). A form that was found valid is
        # not checked again, which saves 8 µs for two inputs. None with inputs whose content matters: BYTES and shapes.
        by_content = any(i.datatype is BYTES or i.is_shape_tensor for i in spec.inputs.values())
        self._right: Memo[_Form, BatchForm] | None = None if by_content else Memo(_MAX_FORMS)
        # The same for inputs that arrive as one run of bytes.
        self._right_layouts: Memo[TensorLayout, BatchForm] = Memo(_MAX_FORMS)
        # Then arrays are made only on demand, unless the model receives another shape than the client sends.
        self._knows_arrays = not by_content and all(i.model_dims is None for i in spec.inputs.values())

    def check(self, request: InferenceRequest) -> BatchForm:
        """Set the `array` of every input. Returns the number of items of the request and its batch key.

        Raises InvalidRequest, and Unsupported for the id of a sequence, with Triton's text.
        """
        for name in request.outputs:
            if name not in self._spec.outputs:
                unknown = min(set(request.outputs) - self._spec.outputs.keys())  # Triton has them in this order
                raise InvalidRequest(
                    f"unexpected inference output '{unknown}' for model '{self._spec.name}'",
                    hint=f"the outputs are: {', '.join(self._spec.outputs)}",
                )
        if request.correlation_id:
            check_correlation_id(request.correlation_id, request.log_prefix)
        inputs = request.inputs
        if type(inputs) is not PackedInputs:
            return self._check_inputs(request)
        layout = inputs.layout
        found = self._right_layouts.get(layout)
        if found is None:
            found = self._check_inputs(request)
            if self._knows_arrays and not (
                self._batching and _has_no_items([shape for _, _, shape, _, _ in layout.entries])
            ):
                self._right_layouts[layout] = found
        return found

    def _check_inputs(self, request: InferenceRequest) -> BatchForm:
        inputs = request.inputs
        right = self._right
        if right is None:
            found = self._examine(request, inputs)
        else:
            form = tuple([(t.name, t.datatype, t.shape, t.nbytes) for t in inputs])
            known = right.get(form)
            if known is not None and self._knows_arrays:
                for tensor in inputs:
                    tensor.forget_array()
                return known
            found = self._examine(request, inputs) if known is None else known
            if known is None and not (self._batching and _has_no_items([t.shape for t in inputs])):
                right[form] = found
        batch_size = found[0]
        for tensor in reversed(inputs):
            if self._batching and not tensor.shape[0] and tensor.name not in self._shape_inputs:
                tensor.shape = (1, *tensor.shape[1:])
            if isinstance(tensor, RegionInput):
                # Not the request, which has the tensor: the memory of an input must become free without the collector.
                origin = InferenceRequest(request.model_name, [], id=request.id)
                tensor.defer(partial(self._array, origin, batch_size=batch_size))
            else:
                tensor.array = self._array(request, tensor, batch_size)
        return found

    def _examine(self, request: InferenceRequest, inputs: Inputs) -> BatchForm:
        """Check names, datatypes, shapes and sizes, in Triton's order."""
        by_name = {tensor.name: tensor for tensor in inputs}
        if len(by_name) != len(inputs):
            raise InvalidRequest(f"{request.log_prefix}input '{_duplicate(inputs)}' already exists in request")
        if by_name.keys() != self._spec.inputs.keys():
            self._check_names(request, by_name)
        batch_size = self._check_batch(request, inputs) if self._batching else 1
        for tensor in reversed(inputs):
            self._check_tensor(request, tensor, self._spec.inputs[tensor.name], batch_size)
        if not self._has_key:
            return batch_size, None
        shapes = [(t.name, t.shape[1:]) for t in inputs if t.name in self._key_inputs]
        names = [t.name for t in inputs] if self._has_optional else []
        values = [(t.name, bytes(t.data)) for t in inputs if t.name in self._shape_inputs]
        key = (*sorted(shapes), *sorted(names), *sorted(values))
        return batch_size, key if self._buckets is None else (self._padded_length(request, inputs, self._buckets), *key)

    def _check_names(self, request: InferenceRequest, by_name: dict[str, InputTensor]) -> None:
        spec = self._spec
        required = [name for name, i in spec.inputs.items() if not i.optional]
        if len(required) <= len(by_name) <= len(spec.inputs):
            for tensor in reversed(request.inputs):
                if tensor.name not in spec.inputs:
                    raise InvalidRequest(
                        f"unexpected inference input '{tensor.name}' for model '{spec.name}'", hint=self._inputs_hint()
                    )
        missing = [name for name in required if name not in by_name]
        if not missing and len(by_name) <= len(spec.inputs):
            return
        if len(required) == len(spec.inputs):
            expected = f"expected {len(required)} inputs"
        else:
            expected = f"expected number of inputs between {len(required)} and {len(spec.inputs)}"
        # Triton writes an empty list of missing inputs as "]"; clients may match this text.
        missing_text = _quoted(missing) if missing else "]"
        raise InvalidRequest(
            f"{request.log_prefix}{expected} but got {len(by_name)} inputs for model '{spec.name}'. "
            f"Got input(s) {_quoted(reversed(list(by_name)))}, but missing required input(s) {missing_text}. "
            "Please provide all required input(s).",
            hint=self._inputs_hint(),
        )

    def _inputs_hint(self) -> str:
        optional = {name for name, i in self._spec.inputs.items() if i.optional}
        names = (f"{name} (optional)" if name in optional else name for name in self._spec.inputs)
        return f"the inputs are: {', '.join(names)}"

    def _check_batch(self, request: InferenceRequest, inputs: Inputs) -> int:
        spec = self._spec
        batch: int | None = None
        for tensor in reversed(inputs):
            if tensor.name in self._shape_inputs:
                continue
            if not tensor.shape:
                raise InvalidRequest(
                    f"{request.log_prefix}input '{tensor.name}' has no shape but model requires batch dimension "
                    f"for '{spec.name}'",
                    hint=self._shape_hint(tensor),
                )
            if batch is None:
                batch = tensor.shape[0]
                if batch < 0:
                    raise self._unspecified(request, tensor)
            elif tensor.shape[0] != batch:
                raise InvalidRequest(
                    f"{request.log_prefix}input '{tensor.name}' batch size does not match other inputs "
                    f"for '{spec.name}'",
                    hint=self._rank_hint(inputs) or "send as many items in each input",
                )
        if batch is None:
            return 1
        if batch > spec.max_batch_size:
            raise InvalidRequest(
                f"{request.log_prefix}inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}'",
                hint=self._rank_hint(inputs)
                or f"the request has {batch} items: send fewer at once, or set max_batch_size in config.pbtxt. "
                "A model without one gets the default, 4, which --backend-config=default-max-batch-size=32 changes",
            )
        return batch or 1

    def _check_dims(self, request: InferenceRequest, tensor: InputTensor, dims: Shape, expected: InputSpec) -> None:
        """The first dimension that is wrong decides the error, as in Triton."""
        fits = len(dims) == len(expected.dims)
        for dim, wanted in zip(dims, expected.dims, strict=True) if fits else ():
            if dim == -1 or (dim < 0 and wanted == -1):
                raise self._unspecified(request, tensor)
            if wanted not in (-1, dim):
                fits = False
                break
        if not fits:
            full = (-1, *expected.dims) if self._has_batch(expected) else expected.dims
            raise InvalidRequest(
                f"{request.log_prefix}unexpected shape for input '{tensor.name}' for model '{self._spec.name}'. "
                f"Expected {shape_text(full)}, got {shape_text(tensor.shape)}. {_BATCH_NOTE if self._batching else ''}",
                hint=self._shape_hint(tensor),
            )

    def _check_tensor(
        self, request: InferenceRequest, tensor: InputTensor, expected: InputSpec, batch_size: int
    ) -> None:
        datatype = expected.datatype
        if tensor.datatype != datatype.name:
            given = tensor.datatype if tensor.datatype in BY_NAME else INVALID_DATATYPE
            raise InvalidRequest(
                f"{request.log_prefix}inference input '{tensor.name}' data-type is '{given}', "
                f"but model '{self._spec.name}' expects '{datatype.name}'",
                hint=_datatype_hint(tensor.name, datatype),
            )
        shape = tensor.shape
        dims = shape[1:] if self._has_batch(expected) else shape
        if dims != expected.dims or -1 in dims:
            self._check_dims(request, tensor, dims, expected)
        count = self._element_count(tensor, batch_size)
        if not count and prod([dim for dim in shape if dim]) * self._largest_item > MAX_ELEMENTS:
            # numpy multiplies the other dimensions, also those of an array without elements.
            largest = max(range(len(shape)), key=shape.__getitem__)
            raise InvalidRequest(
                f"{request.log_prefix}invalid shape for input '{tensor.name}': dimension {largest} of shape "
                f"{shape_text(shape)} is too large, though the input has no elements"
            )
        if count > MAX_ELEMENTS:
            raise InvalidRequest(
                f"{request.log_prefix}invalid shape for input '{tensor.name}': shape {shape_text(shape)} causes total "
                f"element count to exceed maximum size of {MAX_ELEMENTS}"
            )
        size = count * datatype.size
        if size > MAX_ELEMENTS:
            raise InvalidRequest(
                f"{request.log_prefix}byte size overflow for input '{tensor.name}': element count ({count}) * data "
                f"type size ({datatype.size}) exceeds maximum allowed size ({MAX_ELEMENTS})"
            )
        if datatype is not BYTES and tensor.nbytes != size:
            raise InvalidRequest(
                f"{request.log_prefix}input byte size mismatch for input '{tensor.name}' for model "
                f"'{self._spec.name}'. Expected {size}, got {tensor.nbytes}",
                hint=f"{shape_text(shape)} of {datatype.name} are {size} bytes",
            )

    def _element_count(self, tensor: InputTensor, batch_size: int) -> int:
        """As in Triton, a batch dimension of zero counts as one, so that such a request fails its size check."""
        if not self._batching or tensor.name in self._shape_inputs:
            return prod(tensor.shape)
        return prod(tensor.shape[1:]) * batch_size

    def _has_batch(self, expected: InputSpec) -> bool:
        return self._batching and not expected.is_shape_tensor

    def _array(self, request: InferenceRequest, tensor: InputTensor, batch_size: int) -> Array:
        expected = self._spec.inputs[tensor.name]
        if expected.datatype is BYTES:
            array = self._bytes_array(request, tensor, batch_size)
        else:
            array = array_of(tensor.data, expected.datatype.dtype, tensor.shape)
        if expected.model_dims is not None:
            # The tensor's shape after the configured reshape; variable dimensions are matched by position.
            batch, dims = (tensor.shape[:1], tensor.shape[1:]) if self._has_batch(expected) else ((), tensor.shape)
            variable = iter([d for d, e in zip(dims, expected.dims, strict=True) if e == -1])
            array = array.reshape((*batch, *(next(variable) if d == -1 else d for d in expected.model_dims or ())))
        return array

    def _rank_hint(self, inputs: Inputs) -> str:
        """How to send the first input that has too many or too few dimensions; "" if none has."""
        for tensor in inputs:
            expected = self._spec.inputs[tensor.name]
            if len(tensor.shape) != len(expected.dims) + self._has_batch(expected):
                return self._shape_hint(tensor)
        return ""

    def _shape_hint(self, tensor: InputTensor) -> str:
        """The shape to send: with as many items as the tensor has elements for, if that is possible."""
        expected = self._spec.inputs[tensor.name]
        dims = expected.dims
        any_size = ", where -1 is any size" if -1 in dims else ""
        if not self._has_batch(expected):
            return f"send {tensor.name} as {shape_text(dims)}{any_size}"
        given, size = prod(tensor.shape), prod(dims)
        items = given // size if size > 0 and given % size == 0 else 1
        if not 0 < items <= self._spec.max_batch_size:
            items = 1
        kind = "row" if len(dims) == 1 else "item"
        number = f"one {kind}" if items == 1 else f"{items} {kind}s"
        one = str(dims[0]) if len(dims) == 1 and not any_size else shape_text(dims)
        return f"send {tensor.name} as {shape_text((items, *dims))}: {number} of {one}{any_size}"

    def _unspecified(self, request: InferenceRequest, tensor: InputTensor) -> InvalidRequest:
        return InvalidRequest(
            f"{request.log_prefix}All input dimensions should be specified for input '{tensor.name}' "
            f"for model '{self._spec.name}', got {shape_text(tensor.shape)}",
            hint=f"dimension {next(i for i, dim in enumerate(tensor.shape) if dim < 0)} is negative",
        )

    def _bytes_array(self, request: InferenceRequest, tensor: InputTensor, batch_size: int) -> Array:
        content = tensor.data
        count = self._element_count(tensor, batch_size)
        if isinstance(content, np.ndarray):
            given = content.size
            if given > count:
                raise InvalidRequest(
                    f"{request.log_prefix}unexpected number of string elements {count + 1} for inference input "
                    f"'{tensor.name}' for model '{self._spec.name}', expecting {count}"
                )
            if given < count:
                raise InvalidRequest(
                    f"{request.log_prefix}expected {count} string elements for inference input '{tensor.name}' "
                    f"for model '{self._spec.name}', got {given}"
                )
            return content.reshape(tensor.shape)
        elements = unpack_bytes(content, count, name=tensor.name, model=self._spec.name, prefix=request.log_prefix)
        return bytes_array(elements, tensor.shape)

    def _padded_length(self, request: InferenceRequest, inputs: Inputs, buckets: BucketSpec) -> int:
        lengths = {
            tensor.name: tensor.shape[buckets.axes[tensor.name]] for tensor in inputs if tensor.name in buckets.axes
        }
        largest = buckets.lengths[-1]
        for name, length in lengths.items():
            if length > largest:
                raise InvalidRequest(
                    f"{request.log_prefix}input '{name}' has the length {length}, but model '{self._spec.name}' pads "
                    f"to {largest} at most",
                    hint="send less, or add a larger size to LENGTH_BUCKETS in the model's configuration",
                )
        return buckets.length(max(lengths.values(), default=0))


def _datatype_hint(name: str, datatype: Datatype) -> str:
    if datatype is BYTES:
        return f"send {name} as BYTES: texts or bytes"
    numpy_name = "" if datatype.name == "BF16" else f", in numpy .astype('{datatype.dtype.name}')"
    return f"send {name} as {datatype.name}{numpy_name}"


def _duplicate(inputs: Inputs) -> str:
    seen: set[str] = set()
    for tensor in inputs:
        if tensor.name in seen:
            return tensor.name
        seen.add(tensor.name)
    return ""


def _has_no_items(shapes: Iterable[Shape]) -> bool:
    """Return true if an input has a batch dimension of zero; its size check counts it as one item."""
    return any(not shape[0] for shape in shapes)


def _quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
