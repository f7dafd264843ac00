"""An ensemble's scheduler on models that answer when the test says so, and a notation for its steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from trident.core.config.ensemble import EnsembleStep
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.errors import ServerError
from trident.core.inference.pending_request import PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest, InferenceTimes, InputTensor, Parameter
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor
from trident.core.inference.tensors import BY_NAME, Shape
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import StatisticsSnapshot
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.ensemble import EnsembleScheduler


def model_spec(
    name: str, inputs: str, outputs: str, *, batch: int = 0, decoupled: bool = False, optional: str = ""
) -> ModelSpec:
    """One letter is a tensor of INT32 with one dimension of any size."""
    return ModelSpec(
        name=name,
        version=1,
        platform="",
        backend="",
        max_batch_size=batch,
        inputs={
            n: InputSpec(name=n, datatype=BY_NAME["INT32"], dims=(-1,), optional=n in optional)
            for n in inputs + optional
        },
        outputs={n: OutputSpec(name=n, datatype=BY_NAME["INT32"], dims=(-1,)) for n in outputs},
        decoupled=decoupled,
    )


class Step:
    """The model of a step: keeps the requests until `answer`, and answers at once with `at_once`."""

    def __init__(self, name: str, spec: ModelSpec, at_once: Callable[[Step], None] | None = None) -> None:
        self.name = name
        self.spec = spec
        self.at_once = at_once
        self.pending: list[PendingRequest] = []
        self.arrived = threading.Semaphore(0)

    def submit(self, pending: PendingRequest) -> None:
        pending.start_ns = pending.enqueue_ns = 1
        self.pending.append(pending)
        self.arrived.release()
        if self.at_once is not None:
            self.at_once(self)

    @property
    def requests(self) -> list[InferenceRequest]:
        return [pending.request for pending in self.pending]

    def inputs(self, index: int = -1) -> dict[str, list[int]]:
        """The values that a request has brought."""
        return {tensor.name: tensor.array.reshape(-1).tolist() for tensor in self.requests[index].inputs}

    def answer(
        self,
        index: int = -1,
        error: ServerError | None = None,
        origin: Origin = Origin.FAILED,
        final: bool = True,
        parameters: dict[str, Parameter] | None = None,
        shape: Shape | None = None,
        times: InferenceTimes | None = None,
        **outputs: int | Sequence[int],
    ) -> None:
        """Answer a request, and flush as an instance does."""
        pending = self.pending[index]
        arrays = {name: np.atleast_1d(np.array(values, np.int32)) for name, values in outputs.items()}
        tensors = [
            OutputTensor(name, "INT32", shape or array.shape, array.reshape(shape or array.shape))
            for name, array in arrays.items()
        ]
        response = InferenceResponse(
            self.name, 1, tensors, parameters=parameters, error=error, origin=origin, final=final
        )
        response.times = times
        pending.on_response(response)
        if pending.flush is not None:
            pending.flush()


class Bench:
    """`steps` are written as `a(X=i,Z=j:Y=t)`: model a reads tensor i as X and j as Z and writes Y to t."""

    def __init__(
        self,
        inputs: str,
        outputs: str,
        *steps: str,
        batch: int = 0,
        optional: str = "",
        decoupled: str = "",
        batching: dict[str, int] | None = None,
        max_in_flight: int = 0,
        preserves_order: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
        statistics: ModelStatistics | None = None,
    ) -> None:
        self.models: dict[str, Step] = {}
        graph: list[EnsembleStep] = []
        for text in steps:
            name, _, maps = text.removesuffix(")").partition("(")
            sides = [tuple(tuple(pair.split("=")) for pair in side.split(",")) for side in maps.split(":")]
            graph.append(EnsembleStep(model=name, version=-1, inputs=sides[0], outputs=sides[1]))  # type: ignore[arg-type]
            if name not in self.models:
                self.models[name] = Step(
                    name,
                    model_spec(
                        name,
                        "".join(pair[0] for pair in sides[0]),
                        "".join(pair[0] for pair in sides[1]) + ("" if "W" in maps else "W"),
                        batch=(batching or {}).get(name, batch),
                        decoupled=name in decoupled,
                    ),
                )
        self.spec = model_spec("e", inputs, outputs, batch=batch, optional=optional, decoupled=bool(decoupled))
        self.statistics = statistics or ModelStatistics()
        context = SchedulingContext(
            self.spec,
            self.statistics,
            steps=[(step, self.models[step.model]) for step in graph],
            max_in_flight=max_in_flight,
            preserves_order=preserves_order,
            clock=clock,
        )
        self.scheduler = EnsembleScheduler(context)
        self.responses: list[InferenceResponse] = []

    def __getattr__(self, name: str) -> Step:
        return self.models[name]

    def submit(
        self,
        outputs: tuple[str, ...] = (),
        *,
        shape: Shape | None = None,
        stream: bool = False,
        request: InferenceRequest | None = None,
        **inputs: int | Sequence[int],
    ) -> PendingRequest:
        arrays = {name: np.atleast_1d(np.array(values, np.int32)) for name, values in inputs.items()}
        tensors = [
            InputTensor(name, "INT32", shape or array.shape, array.reshape(shape or array.shape))
            for name, array in arrays.items()
        ]
        made = request or InferenceRequest("e", tensors, id="7", outputs=outputs)
        if request is not None:
            made.inputs = tensors
        pending = (StreamedRequest if stream else PendingRequest)(made, self.responses.append)
        pending.batch_size = shape[0] if shape and self.spec.max_batch_size else 1
        self.scheduler.submit(pending)
        return pending

    @property
    def outputs(self) -> dict[str, list[int]]:
        """The values of the last response. Raises its error."""
        response = self.responses[-1]
        if response.error is not None:
            raise response.error
        return {output.name: output.array.reshape(-1).tolist() for output in response.outputs}

    @property
    def counted(self) -> StatisticsSnapshot:
        return self.statistics.snapshot()
