"""The Backend protocol: how a framework loads a model version and executes batches of requests.

    Backend          one for each framework and engine; inspects graphs and loads versions
    BackendModel     one loaded version; owns the weights, once for each device, and makes instances
    BackendInstance  one for each model instance; executes one batch at a time

A framework may run in this process or in processes that its BackendModel starts and `close` ends: the caller cannot
tell. The scheduler owns the instance threads; a backend starts no thread to execute on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trident.core.config.autocomplete import Preparation, Watch, unwatched
from trident.core.config.placement import Placement
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import Defer, DeferredOutcome, PendingRequest, ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import OnResponse, Outputs
from trident.core.observability.metrics.custom_metrics import CustomMetrics
from trident.core.observability.statistics import BucketUse, ModelProcessMetrics


@dataclass(slots=True)
class Execution:
    """The result of one executed batch.

    `outputs[i]` are the output tensors of request i, in the client's shapes, or the error of that request alone, or
    LATER or AGAIN from an instance that answers later. The times are monotonic ns: when the inputs were gathered, and
    when the model had run. The scheduler notes when the execution started and ended, and how many items it had
    unless an instance knows of more than those of the requests. `bucket` is that to which the batch was padded, if any.
    """

    outputs: Sequence[Outputs | Exception | DeferredOutcome]
    input_end_ns: int
    output_start_ns: int
    start_ns: int = 0
    end_ns: int = 0
    items: int = 0
    bucket: BucketUse | None = None


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Everything that a backend needs to load one version.

    `path` is the version directory. `threads` is the number of threads that the thread plan grants to one execution;
    0 leaves it to the framework. `models` are the models that this one may ask while it executes; None where there are
    no others, as in tests of one backend. `metrics` are those that models make, of the whole server. `signature` is
    what `inspect` returned, if the configuration was completed by that. `memory_limit` gives the bytes that the version
    may take on a device (`Placement.device`), 0 for no limit. `prepared` takes what `PreparingBackend.prepare` made.
    """

    path: Path
    config: ModelConfig
    spec: ModelSpec
    placements: tuple[Placement, ...]
    threads: int = 0
    models: BlsClient | None = None
    metrics: CustomMetrics = field(default_factory=CustomMetrics)
    signature: ModelSignature | None = None
    memory_limit: Callable[[str], int] = lambda device: 0
    prepared: Callable[[], Any] = lambda: None


class BackendInstance(Protocol):
    """Executes on the instance's own thread or, if `may_run_inline`, on a thread that submits; never on two at once.

    `poisoned` becomes true when the instance's device cannot run anything again in this process (a lost CUDA context).
    `may_run_inline`: the instance needs no thread of its own, and the values of the inputs cannot make an execution
    much longer than others on tensors of the same shapes.
    `answers_later`: it may answer a request through its sender, several times, after `execute` and from any thread.
    """

    placement: Placement
    poisoned: bool
    may_run_inline: bool
    answers_later: bool

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """Execute `requests` as one batch, and block until all results exist. `batch_sizes` are the items of each.

        `senders` has one for each request if the instance answers later. An outcome that is neither LATER nor AGAIN is
        the final response. An instance that can no longer answer a request must send an error as its final response.
        Raises if the whole batch failed: then every request without a final response is answered with the error.
        """
        ...

    def close(self) -> None:
        """Free the resources that only this instance holds."""
        ...


@runtime_checkable
class EndableInstance(BackendInstance, Protocol):
    """An instance whose execution can be ended, because it runs in a process of its own or the framework can."""

    def abort(self, reason: str, *, for_good: bool) -> None:
        """Fail its running execution and unanswered requests with `reason`. Any thread.

        `for_good`: it executes nothing again; otherwise it executes again as soon as it can. An instance that can end
        its execution only for good does nothing without that.
        """
        ...


OnChange = Callable[[BackendInstance, bool], None]


class BackendModel(Protocol):
    """One loaded version. Loader threads, several at once.

    `labels` are the classes of each output, by output and index, where the graph has them.
    """

    labels: Mapping[str, tuple[str, ...]]

    def describe(self) -> dict[str, str]:
        """The version's cells of the start table: `device`, `execution provider`, and the thread plan."""
        ...

    def instance(self, placement: Placement) -> BackendInstance:
        """Make an instance, at load or while others serve.

        Loads the weights from the version directory onto a device that has none yet. Raises a ServerError, and then
        nothing has changed.
        """
        ...

    def watch(self, on_change: OnChange) -> None:
        """Call `on_change` whenever an instance cannot execute for a while (False), and when it can again (True).

        On a thread that is not the instance's. Called once, when the version begins to serve.
        """
        ...

    @property
    def trouble(self) -> str:
        """The reason why it cannot serve at the moment, such as an instance whose process died; "" if it can.

        Any thread; does not block.
        """
        ...

    def check_ready(self) -> None:
        """Ask the model itself whether it is ready. Raises a ServerError with the reason. Any thread; may block."""
        ...

    def processes(self) -> list[ModelProcessMetrics]:
        """The processes of its instances; none for a framework that runs in this one. Any thread."""
        ...

    def retain(self, devices: Iterable[str]) -> None:
        """Free the weights on all devices except `devices` (`Placement.device`) and those that instances still use.

        Called after the instances on the other devices are closed. A device may be used again later.
        """
        ...

    def close(self) -> None:
        """Free everything. Called after every instance is closed."""
        ...


@runtime_checkable
class StartingModel(BackendModel, Protocol):
    """A version whose instances take as long to start as the model's own code does."""

    def end_starts(self, reason: str) -> None:
        """End the instances that are being started, and start no others, because of `reason`. Any thread."""
        ...


@runtime_checkable
class ShrinkableModel(BackendModel, Protocol):
    """A version whose framework keeps memory for later executions, and can return it."""

    def shrink(self, device: str) -> None:
        """Return the memory of `device` that only past executions needed. On the thread of an instance there."""
        ...


@runtime_checkable
class SharingModel(BackendModel, Protocol):
    """A version that shares memory with processes."""

    def release_memory(self) -> None:
        """Return unused memory to the system. Any thread; does not block."""
        ...


@runtime_checkable
class TriedModel(BackendModel, Protocol):
    """A version whose framework tries batches.

    `separated_because` is what the trial has shown if requests must not be combined, a clause; otherwise "".
    """

    separated_because: str


class Backend(Protocol):
    """A framework. Made with the values of --backend-config for it. Loader threads, several at once.

    `supports_gpus`: the installed framework was built for GPUs, whether or not this machine has one.
    One whose models complete their configurations themselves is a CompletingBackend.
    """

    supports_gpus: bool

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The inputs and outputs of the model in the version directory `path`. Raises a ServerError.

        None if models of this framework do not say what they are: they take what the configuration says.
        """
        ...

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError if the complete `config` asks for something that this installation does not have.

        Loads nothing: it finds, besides `inspect`, what can be known of a load without doing it. The error names the
        field that it is about. NotInstalled, if the framework is not there, comes after all others.
        """
        ...

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version and check its graph against the configuration. Raises a ServerError with Triton's text."""
        ...


@runtime_checkable
class WeighingBackend(Backend, Protocol):
    """A framework that keeps the weights of a model in its files."""

    def weight_bytes(self, path: Path, config: ModelConfig) -> int:
        """Return the least size in bytes on a GPU of the weights of the model in the directory `path`; 0 if unknown.

        Reads no file. It may come before `load` finds that there is none.
        """
        ...


@runtime_checkable
class PreparingBackend(Backend, Protocol):
    """A framework that loads a model to inspect it."""

    def prepare(self, path: Path, config: ModelConfig, preparation: Preparation) -> ModelSignature:
        """As `inspect`; and put the model that the next `load` of the version may serve into `preparation`."""
        ...


@runtime_checkable
class TryingBackend(Backend, Protocol):
    """A framework whose models are code that can be tried without serving it."""

    def try_model(self, path: Path, config: ModelConfig, spec: ModelSpec, *, initialize: bool) -> None:
        """Import the model in the version directory `path`, and with `initialize` start and end it, too.

        Raises a ServerError with what keeps it from being loaded. Blocks, but not for ever.
        """
        ...


@runtime_checkable
class CompletingBackend(Backend, Protocol):
    """A framework whose models complete their configurations themselves, complete ones too."""

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        """Complete `config` in place as the model in the version directory `path` wants. Raises a ServerError.

        Code of the model's may run for ever: `watch` is given what ends it.
        """
        ...


# Triton calls this business logic scripting. Source: docs/spec/python-backend.md sections 4.3 and 4.4.


class BlsClient(Protocol):
    """Any thread may call any method, and none blocks unless its docstring says so."""

    def infer(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        decoupled: bool = False,
        holder: Placement | None = None,
        defer: Defer | None = None,
        flush: Callable[[], None] | None = None,
    ) -> PendingRequest:
        """Submit `request` to the model that it names, as a front end does. An error is a response.

        `decoupled`: the caller takes any number of responses, and the result is a StreamedRequest; without it, a model
        that may send many is refused. `holder` is the instance that asks, if its execution waits for the responses: a
        model that would wait for that instance, or for resources that the execution holds, is refused. See
        PendingRequest for `on_response`, which may be called before this returns, `defer`, `flush` and `cancel`.
        """
        ...

    def spec(self, name: str, version: int = -1) -> ModelSpec:
        """The spec of the ready `version`, -1 for the latest. Raises ModelNotFound or ModelNotReady."""
        ...

    def load(self, name: str, parameters: Mapping[str, str | bytes], *, asker: str) -> None:
        """Load or reload a model; see `Engine.load_model`. Blocks until it serves. Raises a ServerError, also if
        the model `asker` is being loaded and this load would wait for that."""
        ...

    def unload(self, name: str, unload_dependents: bool = False, *, asker: str) -> None:
        """Begin to unload a model; requests in flight are still answered. Raises ModelNotReady unless the control mode
        is explicit, ModelLoadFailed as `load`.
        """
        ...

    def is_ready(self, name: str, version: int = -1) -> bool:
        """Return True if `version` serves; False, too, for a model that does not exist."""
        ...
