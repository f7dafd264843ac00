"""The one model of this process: what the library knows about it, whoever calls.

Source: docs/spec/python-backend.md sections 4.1 and 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """LOADING -> SERVING -> ENDING; a model that cannot be loaded stays in LOADING."""

    LOADING = "loading"
    SERVING = "serving"
    """`initialize` has returned: the model may send requests to others."""
    ENDING = "ending"
    """`finalize` begins."""


@dataclass
class RunningModel:
    """`directory` is that of the version, `outputs` are the names in the configuration. Set by ModelHost."""

    name: str = ""
    directory: str = ""
    decoupled: bool = False
    outputs: frozenset[str] = field(default_factory=frozenset)
    phase: Phase = Phase.LOADING


_model = RunningModel()


def running_model() -> RunningModel:
    return _model


def start(model: RunningModel) -> None:
    """Make `model` the one of this process."""
    global _model
    _model = model


def get_model_dir() -> str:
    """The directory of the version that this process serves."""
    return _model.directory
