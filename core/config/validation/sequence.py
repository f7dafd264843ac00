"""Checks of `sequence_batching`: its strategy, its controls and its states.

Source: docs/spec/schedulers.md section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.config.problem import Problem
from core.config.schema import ModelConfig, ModelInstanceGroup, ModelSequenceBatching, datatype_of

_FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")
_QUOTED = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"
_ID_DATATYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
_FLAG_HINT = "for example: int32_false_true: [ 0, 1 ]"


def sequence_problems(config: ModelConfig, model_name: str, *, completed: bool = True) -> list[Problem]:
    """The problems of the sequence batcher; with `completed` False auto-complete may still fill max_batch_size."""
    if not config.HasField("sequence_batching"):
        return []
    batching = config.sequence_batching
    suffix = f" for {model_name}"
    problems: list[Problem] = []
    problems += _strategy_problems(config, suffix, completed)
    problems += _control_problems(batching, suffix)
    problems += _state_problems(config)
    problems += _client_problems(config, suffix)
    return problems


def _strategy_problems(config: ModelConfig, suffix: str, completed: bool) -> Iterator[Problem]:
    batching = config.sequence_batching
    # Written so that it also finds a NaN.
    if batching.HasField("direct") and not 0 <= batching.direct.minimum_slot_utilization <= 1:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0]{suffix}"
        yield Problem("sequence_batching.direct.minimum_slot_utilization", text)
    if batching.HasField("oldest"):
        path = "sequence_batching.oldest.preferred_batch_size"
        sizes = batching.oldest.preferred_batch_size
        limit = config.max_batch_size if completed or config.max_batch_size > 0 else None
        if any(size <= 0 for size in sizes):
            yield Problem(path, f"sequence batching preferred batch size must be positive{suffix}")
        if limit is not None and any(size > limit for size in sizes):
            text = f"sequence batching preferred batch size must be <= max batch size{suffix}"
            yield Problem(path, text, f"max_batch_size is {limit}")


def _control_problems(batching: ModelSequenceBatching, suffix: str) -> Iterator[Problem]:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for index, entry in enumerate(batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        if not entry.name:
            yield Problem(f"{path}.name", f"sequence batching control tensor must have a name{suffix}")
        elif entry.name in tensors or len(entry.control) > 1:
            text = f"sequence batching control tensor '{entry.name}' is specified for multiple control kinds{suffix}"
            yield Problem(path, text)
        tensors.add(entry.name)
        for number, control in enumerate(entry.control):
            kind = _kind_name(control.kind)
            if control.kind in kinds:
                yield Problem(path, f"sequence batching specifies multiple {kind} tensors{suffix}")
            kinds.add(control.kind)
            where = f"{path}.control[{number}]"
            if control.kind == ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
                yield from _id_problems(control, where, kind, suffix)
            else:
                yield from _flag_problems(control, where, kind, suffix)


def _kind_name(kind: int) -> str:
    kinds = ModelSequenceBatching.Control.Kind
    return kinds.Name(kind) if kind in kinds.values() else str(kind)


def _flag_problems(control: ModelSequenceBatching.Control, path: str, kind: str, suffix: str) -> Iterator[Problem]:
    given = [name for name in _FALSE_TRUE if getattr(control, name)]
    if not given:
        text = f"sequence batching must specify either {_QUOTED.format('or')} for {kind}{suffix}"
        yield Problem(path, text, _FLAG_HINT)
    elif len(given) > 1:
        text = f"sequence batching specifies more than one from {_QUOTED.format('and')} for {kind}{suffix}"
        yield Problem(path, text, _FLAG_HINT)
    elif len(getattr(control, given[0])) != 2:
        text = f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind}{suffix}"
        yield Problem(f"{path}.{given[0]}", text, _FLAG_HINT)


def _id_problems(control: ModelSequenceBatching.Control, path: str, kind: str, suffix: str) -> Iterator[Problem]:
    if any(getattr(control, name) for name in _FALSE_TRUE):
        yield Problem(path, f"sequence batching must not specify either {_QUOTED.format('or')} for {kind}{suffix}")
    datatype = datatype_of(control.data_type)
    if datatype is None or datatype.name not in _ID_DATATYPES:
        text = f"unexpected data type for control {kind}{suffix}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
        yield Problem(f"{path}.data_type", text + "TYPE_UINT32, TYPE_INT32 and TYPE_STRING")


def _state_problems(config: ModelConfig) -> Iterator[Problem]:
    inputs: set[str] = set()
    outputs: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        path = f"sequence_batching.state[{index}]"
        name = state.input_name
        if not name or not state.output_name:
            text = f"a state of model '{config.name}' must specify 'input_name' and 'output_name'"
            yield Problem(path, text)
        if name in inputs:
            yield Problem(f"{path}.input_name", f"State input name '{name}' specified more than once.")
        if state.output_name in outputs:
            text = f"State output name '{state.output_name}' specified more than once."
            yield Problem(f"{path}.output_name", text)
        inputs.add(name)
        outputs.add(state.output_name)
        if datatype_of(state.data_type) is None:
            yield Problem(f"{path}.data_type", f"state '{name}' of model '{config.name}' must specify 'data_type'")
        if any(dim < 1 and dim != -1 for dim in state.dims):
            text = f"state '{name}' of model '{config.name}' has a dimension that is neither -1 nor at least 1"
            yield Problem(f"{path}.dims", text)
        yield from _memory_problems(config, state, path)
        yield from _initial_problems(state, path)


def _memory_problems(config: ModelConfig, state: ModelSequenceBatching.State, path: str) -> Iterator[Problem]:
    if not state.use_growable_memory:
        return
    where = f"{path}.use_growable_memory"
    if not state.use_same_buffer_for_input_output:
        text = "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
        yield Problem(where, f"{text}'{state.input_name}'.", "set use_same_buffer_for_input_output: true as well")
    if any(group.kind != ModelInstanceGroup.KIND_GPU for group in config.instance_group):
        text = "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
        text += "instance type to KIND_GPU or set 'use_growable_memory' to false for state input "
        yield Problem(where, f"{text}'{state.input_name}'.")


def _initial_problems(state: ModelSequenceBatching.State, path: str) -> Iterator[Problem]:
    where, name = f"{path}.initial_state", state.input_name
    if len(state.initial_state) > 1:
        text = f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
        yield Problem(where, f"{text}'{len(state.initial_state)}' elements.")
        return
    for initial in state.initial_state:
        if initial.data_type != state.data_type:
            text = f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
            yield Problem(f"{where}.data_type", text)
        if not initial.name:
            text = f"Field 'name' must be set when using initial_state for state input '{name}'."
            yield Problem(f"{where}.name", text)
        yield from _initial_dims_problems(initial.dims, state.dims, f"{where}.dims", name)
        if initial.WhichOneof("state_data") is None:
            text = f"initial_state setting expects state'{name}' to have state_data set"
            yield Problem(where, text, "set zero_data: true, or data_file to a file in the folder initial_state")


def _initial_dims_problems(given: Sequence[int], dims: Sequence[int], path: str, name: str) -> Iterator[Problem]:
    if len(given) != len(dims):
        text = "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
        yield Problem(path, f"{text}'{name}'. {len(given)} != {len(dims)}")
        return
    for mine, wanted in zip(given, dims, strict=True):
        if mine < 0:
            text = f"'initial_state' field for state input name '{name}' contains variable dimensions."
            yield Problem(path, text)
            return
        if wanted not in (-1, mine):
            text = f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
            yield Problem(path, f"{text}{mine} != {wanted}")
            return


def _client_problems(config: ModelConfig, suffix: str) -> Iterator[Problem]:
    """What the scheduler provides cannot come from a client as well."""
    batching = config.sequence_batching
    controls = [entry.name for entry in batching.control_input]
    states = [state.input_name for state in batching.state]
    for index, entry in enumerate(config.input):
        for what, names in (("control", controls), ("state", states)):
            if entry.name in names:
                text = f"sequence batching {what} tensor '{entry.name}' must not be a model input{suffix}"
                yield Problem(f"input[{index}].name", text, "clients do not send it: remove it from 'input'")
    for name in states:
        if name in controls:
            text = f"sequence batching tensor '{name}' is specified as control and as state{suffix}"
            yield Problem("sequence_batching.state", text)
