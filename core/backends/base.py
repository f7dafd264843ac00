"""The Backend protocol: how a framework loads a model version and executes batches of requests.

    Backend        one per framework and server: inspects graphs, loads versions
    BackendModel   one loaded version: owns the weights (one session per device), makes instances
    BackendInstance  one per instance thread: executes a batch at a time

Load-time methods run on a loader thread; `execute` runs on the instance's own thread, or in its place on another, and
never on two at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from core.config.model_spec import ModelSpec
from core.config.placement import Placement
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature, TensorSignature
from core.inference.request import InferenceRequest
from core.inference.response import Outputs

__all__ = [
    "Backend",
    "BackendInstance",
    "BackendModel",
    "Execution",
    "LoadContext",
    "ModelSignature",
    "Placement",
    "TensorSignature",
]


@dataclass(slots=True)
class Execution:
    """What came of executing a batch.

    `outputs[i]` are the output tensors of request i, in the client's shapes, or the error that this request alone
    caused. Times are monotonic ns: inputs gathered, run finished (the scheduler notes start and end itself).
    """

    outputs: Sequence[Outputs | Exception]
    input_end_ns: int
    output_start_ns: int


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a backend needs to load one version. `path` is the version directory; `settings` are --backend-config's."""

    path: Path
    config: ModelConfig
    spec: ModelSpec
    placements: tuple[Placement, ...]
    settings: dict[str, str] = field(default_factory=dict)
    threads: int = 0


class BackendInstance(Protocol):
    """`poisoned` is set when the device can run nothing more in this process (a CUDA context lost).

    `bounded`: the values of the inputs cannot make an execution much longer than others on tensors of the same shapes.
    """

    placement: Placement
    poisoned: bool
    bounded: bool

    def execute(self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        """Execute `requests` as one batch; `batch_sizes` gives the items of each.

        Raises a ServerError when the whole batch failed.
        """
        ...

    def close(self) -> None:
        """Free what this instance alone holds."""
        ...


class BackendModel(Protocol):
    def describe(self) -> dict[str, str]:
        """What the start table shows of it: `device` and `execution provider`, and the thread plan."""
        ...

    def instance(self, placement: Placement) -> BackendInstance:
        """Make an instance, at load or while others serve. On a device that was not used so far, the weights are
        loaded there as well, from the version directory of the load. Loader threads, several at once. Raises a
        ServerError, and then nothing has changed.
        """
        ...

    def retain(self, devices: Iterable[str]) -> None:
        """Free the weights on all devices but `devices` (`Placement.device`), those that instances still use.

        Called after the instances on the others are closed. A device may be used again later.
        """
        ...

    def close(self) -> None:
        """Free the sessions; called after every instance is closed."""
        ...


class Backend(Protocol):
    name: str

    def inspect(self, path: Path, config: ModelConfig, settings: dict[str, str]) -> ModelSignature:
        """The signature of the model in version directory `path`, for auto-complete. Raises a ServerError."""
        ...

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version and check its graph against the configuration. Raises a ServerError with Triton's text."""
        ...
