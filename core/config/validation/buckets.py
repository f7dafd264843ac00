"""Checks of the batch buckets of a configuration.

Source: docs/ragged-batching.md; docs/spec/model-config.md section "In Trident".
"""

from __future__ import annotations

from collections.abc import Iterator

from core.config.buckets import (
    BATCH_BUCKETS,
    LENGTH_BUCKETS,
    LENGTH_OUTPUTS,
    LENGTH_PAD_VALUES,
    names_of,
    pad_value,
    pad_values_of,
    parameter,
    sizes_of,
)
from core.config.platforms import pads_batches
from core.config.problem import Problem
from core.config.schema import BatchInput, ModelConfig, ModelInput, datatype_of

_LARGEST = 2**31 - 1
# Their tensors have a row for each item, so that they can be padded with the rows.
_KINDS_BY_ITEM = (BatchInput.BATCH_ITEM_SHAPE, BatchInput.BATCH_ITEM_SHAPE_FLATTEN)


def bucket_problems(config: ModelConfig, model_name: str) -> list[Problem]:
    """The problems of the buckets of a completed `config` whose other fields are valid."""
    if not pads_batches(config):
        return []
    problems = [
        *_size_problems(config, BATCH_BUCKETS, model_name),
        *_size_problems(config, LENGTH_BUCKETS, model_name),
    ]
    if problems:
        return problems
    if parameter(config, BATCH_BUCKETS):
        problems += _batch_problems(config, model_name)
    if parameter(config, LENGTH_BUCKETS):
        problems += _length_problems(config, model_name)
    else:
        for name in (LENGTH_PAD_VALUES, LENGTH_OUTPUTS):
            if parameter(config, name):
                text = f"{name} is without effect, because there is no {LENGTH_BUCKETS}, for {model_name}"
                problems.append(Problem(_path(name), text, f"add {LENGTH_BUCKETS}, or remove {name}"))
    if parameter(config, BATCH_BUCKETS) or parameter(config, LENGTH_BUCKETS):
        problems += _shape_problems(config, model_name)
    return problems


def _size_problems(config: ModelConfig, name: str, model_name: str) -> Iterator[Problem]:
    text = parameter(config, name)
    if name in config.parameters and not text.strip():
        yield Problem(_path(name), f"{name} is empty for {model_name}", 'sizes with commas, such as "1,4,16"')
        return
    try:
        sizes = sizes_of(text)
    except ValueError:
        yield Problem(_path(name), f"{name} '{text}' is not a list of sizes for {model_name}", 'such as "1,4,16"')
        return
    ascending = tuple(sorted(set(sizes)))
    if sizes and sizes[0] < 1:
        yield Problem(_path(name), f"{name} has a size below 1 for {model_name}", "sizes are 1 or more")
    elif sizes != ascending:
        fitting = ",".join(map(str, ascending))
        yield Problem(_path(name), f"{name} '{text}' is not ascending for {model_name}", f'write "{fitting}"')
    elif sizes and sizes[-1] > _LARGEST:
        text = f"{name} has the size {sizes[-1]}, larger than any dimension, for {model_name}"
        yield Problem(_path(name), text, f"{_LARGEST} at most")


def _batch_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    largest, most = sizes_of(parameter(config, BATCH_BUCKETS))[-1], config.max_batch_size
    if most == 0:
        text = f"{BATCH_BUCKETS} needs a model that batches, and max_batch_size is 0 for {model_name}"
        yield Problem(_path(BATCH_BUCKETS), text, f"set max_batch_size to {largest}, or remove {BATCH_BUCKETS}")
    elif largest != most:
        text = f"the largest size of {BATCH_BUCKETS} is {largest}, but max_batch_size is {most} for {model_name}"
        hint = f"they must be equal: set max_batch_size to {largest}, or end the sizes with {most}"
        yield Problem(_path(BATCH_BUCKETS), text, hint)


def _length_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    variable = {entry.name: entry for entry in config.input if -1 in entry.dims}
    if not variable:
        text = f"{LENGTH_BUCKETS} needs an input with a variable dimension for {model_name}"
        yield Problem(_path(LENGTH_BUCKETS), text, "write -1 in the dims of the input that is to be padded")
    for entry in variable.values():
        if list(entry.dims).count(-1) > 1:
            text = f"input '{entry.name}' has several variable dimensions, and {LENGTH_BUCKETS} pads one, "
            hint = "fix the others in dims"
            yield Problem(_path(LENGTH_BUCKETS), f"{text}for {model_name}", hint)
        if entry.HasField("reshape"):
            text = f"input '{entry.name}' has a reshape, and {LENGTH_BUCKETS} pads only what the graph takes as it is, "
            yield Problem(_path(LENGTH_BUCKETS), f"{text}for {model_name}", "write the dims of the graph")
    yield from _pad_value_problems(config, variable, model_name)
    outputs = {entry.name: entry for entry in config.output}
    for name in names_of(parameter(config, LENGTH_OUTPUTS)):
        if name not in outputs:
            text = f"{LENGTH_OUTPUTS} names '{name}', which is not an output of {model_name}"
            yield Problem(_path(LENGTH_OUTPUTS), text, f"the outputs are: {', '.join(outputs)}")
        elif -1 not in outputs[name].dims:
            text = f"{LENGTH_OUTPUTS} names '{name}', which has no variable dimension, for {model_name}"
            yield Problem(_path(LENGTH_OUTPUTS), text, "remove it: there is nothing to cut")


def _pad_value_problems(config: ModelConfig, variable: dict[str, ModelInput], model_name: str) -> Iterator[Problem]:
    try:
        values = pad_values_of(parameter(config, LENGTH_PAD_VALUES))
    except ValueError as error:
        text = f"{LENGTH_PAD_VALUES}: {error} for {model_name}"
        yield Problem(_path(LENGTH_PAD_VALUES), text, 'such as "input_ids=1, scores=-inf"')
        return
    for name, text in values.items():
        datatype = datatype_of(variable[name].data_type) if name in variable else None
        if datatype is None:
            message = f"{LENGTH_PAD_VALUES} names '{name}', which is not an input with a variable dimension, "
            hint = f"these are: {', '.join(variable)}"
            yield Problem(_path(LENGTH_PAD_VALUES), f"{message}for {model_name}", hint)
            continue
        try:
            pad_value(datatype, text)
        except ValueError as error:
            message = f"{LENGTH_PAD_VALUES}: input '{name}' of {datatype.config_name} cannot hold '{text}'"
            yield Problem(_path(LENGTH_PAD_VALUES), f"{message} for {model_name}", str(error))


def _shape_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    """What has no fixed shape in any bucket."""
    for index, entry in enumerate(config.input):
        if entry.allow_ragged_batch:
            text = f"input '{entry.name}' is ragged, and batch buckets cannot pad it, for {model_name}"
            yield Problem(f"input[{index}].allow_ragged_batch", text, "use either ragged inputs or buckets")
        if entry.is_shape_tensor:
            text = f"input '{entry.name}' is a shape tensor, whose values batch buckets would pad, for {model_name}"
            hint = "remove the buckets: a plan with shape tensors decides about shapes itself"
            yield Problem(f"input[{index}].is_shape_tensor", text, hint)
    for index, batch_input in enumerate(config.batch_input):
        if batch_input.kind not in _KINDS_BY_ITEM:
            kind = BatchInput.Kind.Name(batch_input.kind)
            text = f"batch input kind '{kind}' has an element for each request, which batch buckets cannot pad, "
            hint = "BATCH_ITEM_SHAPE tells the model the real length of each row"
            yield Problem(f"batch_input[{index}].kind", f"{text}for {model_name}", hint)
    if config.HasField("sequence_batching"):
        text = f"the rows of sequences belong to their slots, so that batch buckets cannot add rows, for {model_name}"
        yield Problem("sequence_batching", text, "remove the buckets, or the sequence batching")
    if config.batch_output:
        text = f"a batch output has no fixed shape, so that it cannot be used with batch buckets for {model_name}"
        yield Problem("batch_output", text, "outputs are cut to the real rows and lengths without it")


def _path(name: str) -> str:
    return f"parameters[{name}]"
