"""A sequence scheduler on stub instances, for tests: records what the model is given, and the responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tests.project import ROOT
from tests.unit.core.scheduling.scheduler_bench import LIMIT_S, Answers, Stub, closing
from trident.core.backends.backend import BackendInstance
from trident.core.config.autocomplete import normalize
from trident.core.config.resolve import initial_states, resolve_model_spec
from trident.core.config.schema import parse_model_config
from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import OutputTensor
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import DynamicBatcher
from trident.core.scheduling.sequence_batcher import SequenceScheduler

CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2.5 ] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
HOUR = "max_sequence_idle_microseconds: 3600000000 "
SUM = 'state { input_name: "SUM_IN" output_name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }'

Given = dict[str, np.ndarray]  # type: ignore[type-arg]


def spec_of(sequence_batching: str, max_batch_size: int = 4) -> ModelSpec:
    config = parse_model_config(
        f'name: "m" backend: "stub" max_batch_size: {max_batch_size} '
        'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } '
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } '
        f"sequence_batching {{ {sequence_batching} }}",
        "config.pbtxt",
    )
    normalize(config, ())
    return resolve_model_spec(config, 1, {})


class Summing(Stub):
    """OUT and SUM are X plus SUM_IN, where the model has that. `given` has the arrays of each request, by input."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.given: list[Given] = []

    def outputs(self, request: InferenceRequest) -> list[OutputTensor]:
        given = {tensor.name: tensor.array for tensor in request.inputs}
        self.given.append(given)
        total = given["X"] + given.get("SUM_IN", 0)
        names = request.outputs or ("OUT", "SUM")
        return [OutputTensor(name, "INT32", total.shape, total) for name in ("OUT", "SUM") if name in names]


class Bench(Answers):
    """The scheduler for `sequence_batching`, and the responses to its requests."""

    def __init__(
        self,
        sequence_batching: str,
        *,
        max_batch_size: int = 4,
        instances: Sequence[BackendInstance] = (),
        count: int = 1,
        make_batcher: Callable[..., DynamicBatcher] = DynamicBatcher,
        statistics: ModelStatistics | None = None,
        **options: Any,
    ) -> None:
        """`options` are fields of the context."""
        super().__init__()
        self.spec = spec_of(sequence_batching, max_batch_size)
        self.backends = [Summing(number) for number in range(count)]
        self.backend = self.backends[0]
        self.statistics = statistics or ModelStatistics()
        config = parse_model_config(f'name: "m" sequence_batching {{ {sequence_batching} }}', "config.pbtxt")
        assert self.spec.sequence is not None
        context = SchedulingContext(
            self.spec,
            self.statistics,
            **options,
            initial_states=initial_states(config, self.spec.sequence.states, ROOT),
        )
        self.scheduler = SequenceScheduler(context, instances or self.backends, make_batcher)

    def request(self, id: str, sequence: int | str, flags: str = "", value: int = 1, **fields: int) -> PendingRequest:
        """`flags` has an "s" for START and an "e" for END."""
        shape = (1, 1) if self.spec.max_batch_size else (1,)
        tensor = InputTensor("X", "INT32", shape, np.full(shape, value, np.int32))
        request = InferenceRequest(
            "m",
            [tensor],
            id=id,
            correlation_id=sequence,
            sequence_start="s" in flags,
            sequence_end="e" in flags,
            **fields,
        )
        return PendingRequest(request, self.on_response)

    def submit(self, id: str, sequence: int | str, flags: str = "", value: int = 1, **fields: int) -> PendingRequest:
        pending = self.request(id, sequence, flags, value, **fields)
        self.scheduler.submit(pending)
        return pending

    def begun(self, number: int = 0) -> None:
        """Wait until instance `number` has begun one more execution."""
        assert self.backends[number].begun.acquire(timeout=LIMIT_S)

    def values(self) -> dict[str, int]:
        """OUT of each response."""
        return {answer.id: int(answer.outputs[0].array.reshape(-1)[0]) for answer in self.answers}


MakeBench = Callable[..., Bench]


def benches() -> AbstractContextManager[MakeBench]:
    return closing(Bench)
