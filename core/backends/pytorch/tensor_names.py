"""Which argument of `forward`, or which of its results, a tensor of a configuration is.

Source: docs/spec/framework-backends.md section 6.2, "Names".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from core.config.schema import ModelConfig
from core.errors import BackendFailed

_log = logging.getLogger("trident.backends")

# Any prefix, then the first two underscores, then only digits.
_INDEXED = re.compile(r"(?:(?!__).)*__(?P<index>\d+)", re.DOTALL)


def index_of(name: str) -> int | None:
    """The index of a name of the form <name>__<index>; None for any other."""
    match = _INDEXED.fullmatch(name)
    return int(match["index"]) if match else None


def input_positions(names: Sequence[str], arguments: Sequence[str], model: str) -> dict[str, int]:
    """The position of each input among the arguments of `forward`: by their names, their indices, or their order.

    `names` are all that the model is given, in the order of the configuration; `arguments` leaves out `self`.
    """
    if all(name in arguments for name in names):
        return {name: arguments.index(name) for name in names}
    return _by_index_or_order(
        names,
        f"input '%s' or previous input(s) are neither an input argument to the model '{model}' nor do they follow the "
        "<name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration.",
    )


def output_positions(names: Sequence[str], model: str) -> dict[str, int]:
    """The position of each output among the results: by their indices, or their order."""
    return _by_index_or_order(
        names,
        f"output '%s' or previous output(s) of the model '{model}' do not follow the <name>__<index> naming "
        "convention. Falling back to enforcing strict ordering from model configuration.",
    )


def check_controls(config: ModelConfig) -> None:
    """Raise a ServerError for controls and states of sequences whose names do not say where they belong."""
    batching = config.sequence_batching
    for control in batching.control_input:
        if index_of(control.name) is None:
            raise _wrong(
                f"input '{control.name}' does not follow <name>__<index> naming convention.", config, "control_input"
            )
    if not batching.state:
        return
    beginning = f"PyTorch model '{config.name}' is using sequence batching with state but "
    if any(index_of(entry.name) is None for entry in [*config.input, *config.output]):
        raise _wrong(
            f"{beginning}not all inputs and outputs follow the <name>__<index> naming convention. ", config, "state"
        )
    for state in batching.state:
        for name in (state.input_name, state.output_name):
            if index_of(name) is None:
                raise _wrong(
                    f"{beginning}state '{name}' does not follow the <name>__<index> naming convention. ",
                    config,
                    "state",
                )


def _by_index_or_order(names: Sequence[str], warning: str) -> dict[str, int]:
    indices = [index_of(name) for name in names]
    if None not in indices:
        return {name: index for name, index in zip(names, indices, strict=True) if index is not None}
    wrong = names[indices.index(None)]
    if "__" in wrong:
        _log.warning(warning, wrong)
    return {name: position for position, name in enumerate(names)}


def _wrong(message: str, config: ModelConfig, field: str) -> BackendFailed:
    return BackendFailed(message, model=config.name, field=f"sequence_batching.{field}")
