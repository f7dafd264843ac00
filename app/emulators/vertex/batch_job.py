"""A batch prediction job: it sends all instances of an input to the container, in the platform's request format.

On the platform several replicas share the input. The emulator has one replica and sends one request at a time.
Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from app.emulators.vertex.batch_input import InstancesFormat, read_records
from app.emulators.vertex.batch_instance import BatchInstance, InstanceConfig
from app.emulators.vertex.batch_output import BatchOutput
from app.emulators.vertex.canonical_code import CanonicalCode
from app.emulators.vertex.endpoint import Endpoint
from app.emulators.vertex.google_error import GoogleError
from app.emulators.vertex.predictions import predict_request
from core.errors import ConfigInvalid

BATCH_SIZE = 64
"""Instances in a request, unless the job sets it."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The settings of a job. `parameters` are sent with every request, None for none."""

    input: Path
    output: Path
    instances_format: InstancesFormat
    config: InstanceConfig = field(default_factory=InstanceConfig)
    batch_size: int = BATCH_SIZE
    parameters: Any = None

    def check(self) -> None:
        """Raises ConfigInvalid for settings that are wrong whatever the model is."""
        self.config.check(self.instances_format)
        if not self.input.is_file():
            raise ConfigInvalid(f"{self.input} is not a file")


@dataclass(slots=True)
class BatchCounts:
    """Numbers of instances. `is_whole`: the job reached the end of its input."""

    predicted: int = 0
    failed: int = 0
    is_whole: bool = False

    def text(self) -> str:
        stopped = "" if self.is_whole else "; the job was stopped before the end of its input"
        return f"{self.predicted} instances predicted, {self.failed} failed{stopped}"


class BatchJob:
    """Sends requests to `endpoint`. Runs once, on one thread."""

    def __init__(self, options: BatchOptions, endpoint: Endpoint) -> None:
        self._options = options
        self._endpoint = endpoint

    def run(self, is_stopped: Callable[[], bool]) -> BatchCounts:
        """Run until the end of the input, or until `is_stopped` returns true.

        Raises ConfigInvalid for an input that cannot be read or an output folder that cannot be created, and OSError
        if writing the output fails.
        """
        counts = BatchCounts()
        with BatchOutput(self._options.output) as output:
            remaining = self._instances(output, counts)
            while instances := list(islice(remaining, self._options.batch_size)):
                if is_stopped():
                    return counts
                self._predict(instances, output, counts, is_stopped)
        counts.is_whole = not is_stopped()
        return counts

    def _instances(self, output: BatchOutput, counts: BatchCounts) -> Iterator[BatchInstance]:
        """The instances that can be sent; the others are written as errors."""
        for record in read_records(self._options.input, self._options.instances_format):
            instance = self._options.config.instance(record, self._options.instances_format)
            if instance.fault:
                counts.failed += 1
                output.add_error(instance.label, CanonicalCode.INVALID_ARGUMENT, instance.fault)
            else:
                yield instance

    def _predict(
        self, instances: list[BatchInstance], output: BatchOutput, counts: BatchCounts, is_stopped: Callable[[], bool]
    ) -> None:
        """Send one request; all its instances get a prediction, or all get an error."""
        try:
            request = predict_request([each.value for each in instances], self._options.parameters)
            found = self._endpoint.predictions(request)
            if fault := found.fault(request.count):
                raise GoogleError(500, f"the container {fault}")
        except GoogleError as error:
            if is_stopped():
                return
            counts.failed += len(instances)
            for each in instances:
                output.add_error(each.label, error.status, f"Cannot get predictions. {error.message}")
            return
        counts.predicted += len(instances)
        for each, value in zip(instances, found.values, strict=True):
            output.add_prediction(each.label, value)
