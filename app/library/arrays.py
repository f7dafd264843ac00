"""The tensors of a caller in Python: values to inputs, and outputs to arrays."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.frontend.classification import classified
from trident.core.inference.request import InputTensor, Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import BYTES, DATATYPES, Array, Datatype, bytes_array

# The kinds of numbers of which a list becomes a tensor of another kind without a loss that nobody expects.
_FROM: Final = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
_NAMES: Final = {row.dtype: row.name for row in reversed(DATATYPES) if row is not BYTES and row.name != "BF16"}


_CAPSULE: Final = type(datetime.datetime_CAPI)


class Outputs(dict[str, Array]):
    """The outputs of one response by name: arrays in the shapes of the protocol, which belong to the caller.

    BYTES outputs are object arrays of `bytes`, BF16 outputs uint16 arrays of the bit patterns. `model_version` is the
    version that answered, `id` the id of the request, `parameters` are those that the model gave its response.
    """

    __slots__ = ("id", "model_version", "parameters")

    id: str
    model_version: int
    parameters: Mapping[str, Parameter]


def outputs_of(response: InferenceResponse, spec: ModelSpec, classes: int) -> Outputs:
    """The outputs of `response`, as their largest `classes` values unless it is 0. Raises the response's error."""
    if response.error is not None:
        raise response.error
    tensors: Iterable[OutputTensor] = response.outputs
    if classes:
        tensors = [classified(output, classes, spec) for output in tensors]
    found = Outputs()
    for output in tensors:
        array = output.array
        base: object = array.base
        # Views share the batch, bytes that arrived may not be written, and a framework may use its memory again. A
        # capsule is memory that it gave to this array.
        is_own = array.flags.writeable and (base is None or type(base) is _CAPSULE)
        found[output.name] = array if is_own else array.copy()
    found.model_version = response.model_version
    found.id = response.id
    found.parameters = response.parameters or {}
    return found


def inputs_of(spec: ModelSpec, given: Mapping[str, npt.ArrayLike]) -> list[InputTensor]:
    """The inputs with the values in `given`. Raises InvalidRequest if a value does not fit the datatype."""
    tensors = []
    for name, value in given.items():
        expected = spec.inputs.get(name)
        if expected is None:
            raise InvalidRequest(
                f"unexpected inference input '{name}' for model '{spec.name}'",
                hint=f"the inputs are: {', '.join(spec.inputs)}",
                model=spec.name,
            )
        datatype = expected.datatype
        if type(value) is not np.ndarray or value.dtype is not datatype.dtype or not value.flags.carray:
            value = as_array(value, datatype, f"input '{name}' of model '{spec.name}'")
        elif datatype is BYTES:
            value = _strings(value, f"input '{name}' of model '{spec.name}'")
        tensors.append(InputTensor(name, datatype.name, value.shape, value))
    return tensors


def as_array(value: npt.ArrayLike, datatype: Datatype, what: str) -> Array:
    """`value` as a C-contiguous array of `datatype`. Arrays must have its type; lists of numbers are converted.

    Strings may be `str`, in UTF-8 then, or `bytes`. Raises InvalidRequest that names `what`.
    """
    try:
        if datatype is BYTES:
            return _strings(np.asarray(value, dtype=object), what)
        array = np.asarray(value)
        wanted = datatype.dtype
        if isinstance(value, np.ndarray | np.generic):
            if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "equiv"):
                got = _NAMES.get(array.dtype, str(array.dtype))
                raise InvalidRequest(
                    f"{what} is an array of {got}, expected {datatype.name}",
                    hint=f"convert it: .astype(numpy.{wanted.name})",
                )
        elif array.size and array.dtype.kind not in _FROM.get(datatype.kind, ""):
            raise InvalidRequest(f"{what} has values of type {array.dtype}, expected {datatype.name}")
        else:
            array = np.asarray(value, dtype=wanted)
        return np.require(array, wanted, ["C", "A"])
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{what} is no tensor of {datatype.name}: {error}") from error


def _strings(array: Array, what: str) -> Array:
    elements: list[Any] = array.reshape(-1).tolist()
    for index, element in enumerate(elements):
        if type(element) is str:
            elements[index] = element.encode()
        elif type(element) is not bytes:
            raise InvalidRequest(f"{what} has an element of type {type(element).__name__}, expected str or bytes")
    return bytes_array(elements, array.shape)
