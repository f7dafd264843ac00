"""The states with which a sequence begins, with files from `initial_state/` in the model directory.

Source: docs/spec/schedulers.md section 3.4, "Implicit state".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from core.config.paths import path_inside
from core.config.schema import ModelConfig, ModelSequenceBatching
from core.config.sequence.spec import StateSpec
from core.errors import ConfigInvalid, InvalidRequest
from core.inference.tensors import Array, Shape, bytes_array, element_count, unpack_bytes

FOLDER = "initial_state"


def initial_states(config: ModelConfig, states: tuple[StateSpec, ...], model_directory: Path) -> dict[str, Array]:
    """The first value of each of `states`, by input, without batch dimension. Raises ConfigInvalid."""
    given = {state.input_name: state.initial_state for state in config.sequence_batching.state}
    found: dict[str, Array] = {}
    for state in states:
        try:
            initial = given[state.input_name]
            found[state.input_name] = (
                _given(config.name, state, initial[0], model_directory) if initial else _unspecified(state)
            )
        except (MemoryError, OverflowError, ValueError) as error:
            raise ConfigInvalid(
                f"the initial state of '{state.input_name}' cannot be made: {error or 'not enough memory'}",
                model=config.name,
            ) from error
    return found


def _unspecified(state: StateSpec) -> Array:
    """Triton leaves the memory as it is. Zeros tell nothing of other requests."""
    return _zeros(state, tuple(1 if dim == -1 else dim for dim in state.dims))


def _zeros(state: StateSpec, dims: Shape) -> Array:
    if state.datatype.size == 0:
        return bytes_array([b""] * element_count(dims), dims)
    return np.zeros(dims, state.datatype.dtype)


def _given(model: str, state: StateSpec, initial: ModelSequenceBatching.InitialState, model_directory: Path) -> Array:
    dims: Shape = tuple(initial.dims)
    if initial.WhichOneof("state_data") == "zero_data":
        return _zeros(state, dims)
    path = path_inside(model_directory, f"{FOLDER}/{initial.data_file}")
    if path is None:
        raise ConfigInvalid(
            f"initial state file path '{initial.data_file}' for state input '{state.input_name}' in model '{model}' "
            "is outside model directory",
            model=model,
        )
    expected = element_count(dims) * state.datatype.size
    try:
        with path.open("rb") as file:
            content = file.read(expected) if expected else file.read()
    except OSError as error:
        raise ConfigInvalid(f"failed to open file for read {path}: {error.strerror}", model=model) from error
    if state.datatype.size == 0:
        try:
            elements = unpack_bytes(content, element_count(dims), name=state.input_name, model=model)
        except InvalidRequest as error:
            raise ConfigInvalid(error.message, model=model) from error
        return bytes_array(elements, dims)
    if len(content) < expected:
        raise ConfigInvalid(
            f"initial_state setting expects {expected} bytes, but the data provided from {initial.data_file} only has "
            f"{len(content)} bytes.",
            model=model,
        )
    return np.frombuffer(content, state.datatype.dtype).reshape(dims)
