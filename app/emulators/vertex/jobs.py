"""Batch prediction jobs as resources of the API, with their input and output in Cloud Storage.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trident.app.emulators.vertex.batch import (
    BATCH_SIZE,
    BatchCounts,
    BatchJob,
    BatchOptions,
    InstanceConfig,
    InstancesFormat,
    InstanceType,
)
from trident.app.emulators.vertex.container import RunningContainer
from trident.app.emulators.vertex.limits import (
    PROJECT_NUMBER,
    CanonicalCode,
    GoogleError,
    PlatformLimits,
    batch_limits,
    impossible,
    invalid,
)
from trident.core.errors import ConfigInvalid

StartForJob = Callable[[str, PlatformLimits], tuple[RunningContainer, Callable[[], bool]]]


class BatchJobs:
    """Runs one job at a time, in a container that `start` starts for a model's name. Any thread."""

    def __init__(self, start: StartForJob) -> None:
        self._start = start
        self._jobs: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "batch prediction job")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def create(self, location: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Raises GoogleError for a job that the emulator cannot run."""
        given = document.get("inputConfig", {})
        if given.get("instancesFormat") not in set(InstancesFormat) or "gcsSource" not in given:
            raise invalid(f"the emulator reads {', '.join(InstancesFormat)} from Cloud Storage")
        if "gcsDestination" not in document.get("outputConfig", {}):
            raise invalid("the emulator writes to Cloud Storage: outputConfig needs gcsDestination")
        number = str(next(self._numbers))
        name = f"projects/{PROJECT_NUMBER}/locations/{location}/batchPredictionJobs/{number}"
        with self._lock:
            self._jobs[number] = {**document, "name": name, "state": "JOB_STATE_PENDING"}
        self._pool.submit(self._run, number)
        return self.job(number)

    def job(self, number: str) -> dict[str, Any]:
        with self._lock:
            if number not in self._jobs:
                raise GoogleError(404, f"the batch prediction job {number} is not found")
            return dict(self._jobs[number])

    def _set(self, number: str, **changes: Any) -> None:
        with self._lock:
            self._jobs[number].update(changes)

    def _run(self, number: str) -> None:
        self._set(number, state="JOB_STATE_RUNNING")
        try:
            with tempfile.TemporaryDirectory(prefix="trident-batch-") as folder:
                end = self._predict(self.job(number), Path(folder))
        except GoogleError as error:
            end = {"state": "JOB_STATE_FAILED", "error": {"code": error.status.value, "message": error.message}}
        except ConfigInvalid as error:
            code = CanonicalCode.INVALID_ARGUMENT.value
            end = {"state": "JOB_STATE_FAILED", "error": {"code": code, "message": error.message}}
        self._set(number, **end)

    def _predict(self, job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        # The SDK is an optional dependency.
        try:
            from trident.app.emulators.vertex.storage import Storage
        except ImportError as error:
            raise ConfigInvalid(f"a job in Cloud Storage needs the extra gcs: {error}") from None
        storage, given = Storage(), job["inputConfig"]
        inputs = list(storage.fetch(given["gcsSource"]["uris"], given["instancesFormat"], folder))
        running, is_stopped = self._start(job["model"], batch_limits())
        try:
            if not running.wait_until_ready(is_stopped):
                raise impossible("Model server never became ready: the container has failed its probes")
            counts = [
                BatchJob(_options(job, each, folder / "output" / str(place)), running.endpoint).run(is_stopped)
                for place, each in enumerate(inputs, 1)
            ]
        finally:
            running.stop()
        prefix, number = job["outputConfig"]["gcsDestination"]["outputUriPrefix"], job["name"].rpartition("/")[2]
        target = f"{prefix.rstrip('/')}/prediction-{number}"
        for file in sorted((folder / "output").rglob("*.jsonl")):
            kind, place = file.name.partition("_")[0], int(file.parent.name)
            storage.put(file, f"{target}/{kind}_{place:04}.jsonl")
        return {**_outcome(counts), "outputInfo": {"gcsOutputDirectory": target}}


def _outcome(counts: list[BatchCounts]) -> dict[str, Any]:
    predicted, failed = sum(each.predicted for each in counts), sum(each.failed for each in counts)
    stats = {"completionStats": {"successfulCount": str(predicted), "failedCount": str(failed)}}
    first_error = next((each.first_error for each in counts if each.first_error), "")
    if not failed:
        return {"state": "JOB_STATE_SUCCEEDED", **stats}
    error = {"code": CanonicalCode.INVALID_ARGUMENT.value, "message": first_error}
    if predicted:
        return {"state": "JOB_STATE_PARTIALLY_SUCCEEDED", "partialFailures": [error], **stats}
    return {"state": "JOB_STATE_FAILED", "error": error, **stats}


def _options(job: Mapping[str, Any], path: Path, output: Path) -> BatchOptions:
    config = job.get("instanceConfig", {})
    options = BatchOptions(
        input=path,
        output=output,
        instances_format=InstancesFormat(job["inputConfig"]["instancesFormat"]),
        config=InstanceConfig(
            instance_type=InstanceType(config.get("instanceType", "")),
            key_field=config.get("keyField", ""),
            included_fields=tuple(config.get("includedFields", ())),
            excluded_fields=tuple(config.get("excludedFields", ())),
        ),
        batch_size=job.get("manualBatchTuningParameters", {}).get("batchSize") or BATCH_SIZE,
        parameters=job.get("modelParameters"),
    )
    options.check()
    return options
