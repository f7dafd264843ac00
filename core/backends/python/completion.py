"""Completes a configuration with what the model says in `auto_complete_config`.

Source: docs/spec/python-backend.md section 4.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from core.backends.python.model_process import ModelProcess
from core.backends.python.stub_channel import StubGone
from core.config.parse import parse_config_override
from core.config.schema import ModelConfig
from core.errors import BackendFailed

_PLAIN_CLASS = re.compile(rb"^class\s+TritonPythonModel\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)
_METHOD = b"auto_complete_config"
_COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")


def may_complete(file: Path) -> bool:
    """Whether the model in `file` may have the method: a process for nothing would double the time of a load.

    A class with a base class may inherit it. Raises OSError.
    """
    source = file.read_bytes()
    return _METHOD in source or _PLAIN_CLASS.search(source) is None


def complete(config: ModelConfig, launch: Callable[[], ModelProcess]) -> None:
    """Have the model complete `config`, in place, in a process of its own. Raises a ServerError."""
    process = launch()
    try:
        completed = parse_config_override(process.complete()["config"])
    except StubGone as gone:
        how = process.end(reason=str(gone), is_ending=True)
        raise BackendFailed(f"Stub process '{config.name}' is not healthy.", hint=how, model=config.name) from None
    finally:
        process.end()
    for name in _COMPLETED:
        config.ClearField(name)
        value = getattr(completed, name)
        if isinstance(value, int):
            setattr(config, name, value)
        elif name in ("input", "output"):
            getattr(config, name).extend(value)
        elif completed.HasField(name):
            getattr(config, name).CopyFrom(value)
