"""Batch prediction: the records of a job's input, the instances that are sent, the job, and jobs of the API.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import base64
import csv
import itertools
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trident.core.errors import ConfigInvalid, readable
from trident.core.grpc.status import Status
from trident.core.observability.log import escaped
from trident.tools.emulators.container import read_json, size, write_json
from trident.tools.emulators.vertex.container import STORAGE_SCHEME, RunningContainer
from trident.tools.emulators.vertex.endpoint import (
    PROJECT_NUMBER,
    Endpoint,
    GoogleError,
    VertexLimits,
    batch_limits,
    impossible,
    invalid,
    predict_request,
)

_LONGEST_LINE = 64 << 20
_LARGEST_FILE = 64 << 20


class InstancesFormat(StrEnum):
    """The formats by the platform's names."""

    JSONL = "jsonl"
    CSV = "csv"
    FILE_LIST = "file-list"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One instance as read from the input, or with `fault` the reason why it cannot be read."""

    value: Any
    fault: str = ""


def format_of(path: Path) -> InstancesFormat:
    """The format by the suffix of a file; a file list for any other suffix."""
    return {".jsonl": InstancesFormat.JSONL, ".csv": InstancesFormat.CSV}.get(
        path.suffix.lower(), InstancesFormat.FILE_LIST
    )


def read_records(path: Path, instances_format: InstancesFormat) -> Iterator[InputRecord]:
    """The records of a file in order. Raises ConfigInvalid for a file that cannot be read."""
    try:
        if instances_format is InstancesFormat.CSV:
            yield from _rows(path)
            return
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE + 1):
                if len(line) > _LONGEST_LINE:
                    raise ConfigInvalid(f"{path} has a line of more than {size(_LONGEST_LINE)}")
                if not (text := line.strip()):
                    continue
                if instances_format is InstancesFormat.FILE_LIST:
                    yield _file(path.parent, text)
                    continue
                try:
                    yield InputRecord(read_json(text))
                except ValueError as error:
                    yield InputRecord(text.decode(errors="replace"), f"the line is not JSON: {error}")
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror or error}") from error


def _rows(path: Path) -> Iterator[InputRecord]:
    """Each row as an object by the header's names; a field in quotes is text, any other field a number."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        first = csv.reader(file)
        header = next(first, None)
        if header is None:
            raise ConfigInvalid(f"{path} is empty", hint="its first row names the columns")
        if len(set(header)) != len(header):
            raise ConfigInvalid(f"{path} has two columns of one name")
        rows = csv.reader(file, quoting=csv.QUOTE_NONNUMERIC, strict=True)
        while True:
            try:
                row: list[Any] | None = next(rows, None)
            except (ValueError, csv.Error) as error:
                yield InputRecord(None, f"line {first.line_num + rows.line_num}: {error}")
                continue
            if row is None:
                return
            if not row:
                continue
            number = first.line_num + rows.line_num
            value = [None if type(each) is float and not math.isfinite(each) else each for each in row]
            if None in value:
                yield InputRecord(value, f"line {number} has a number that JSON does not have")
            elif len(row) != len(header):
                yield InputRecord(value, f"line {number} has {len(row)} fields, and there are {len(header)} columns")
            else:
                yield InputRecord(dict(zip(header, value, strict=True)))


def _file(folder: Path, line: bytes) -> InputRecord:
    """The content of the file that the line names, relative to the folder of the list."""
    name = line.decode(errors="surrogateescape")
    if name.startswith(STORAGE_SCHEME):
        return InputRecord(readable(name), f"{readable(name)} is not on this machine; the emulator reads files")
    path = folder / name
    try:
        if not path.is_file():
            return InputRecord(readable(name), "there is no such file")
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        return InputRecord(readable(name), f"the file cannot be read: {error}")
    if len(content) > _LARGEST_FILE:
        return InputRecord(readable(name), f"the file has more than {size(_LARGEST_FILE)}")
    return InputRecord({"b64": base64.b64encode(content).decode()})


_KEY, _INSTANCE = "key", "instance"


class InstanceType(StrEnum):
    """The type that records are converted to. With `AS_IS` the platform chooses by the input's format."""

    AS_IS = ""
    ARRAY = "array"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class BatchInstance:
    """`label` is written beside the prediction in the output. `fault`: why the instance is not sent, or ""."""

    value: Any
    label: dict[str, Any]
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """Names are fields of an object or columns of a table; "" and () for none."""

    instance_type: InstanceType = InstanceType.AS_IS
    key_field: str = ""
    included_fields: tuple[str, ...] = ()
    excluded_fields: tuple[str, ...] = ()

    def check(self, instances_format: InstancesFormat) -> None:
        """Raises ConfigInvalid for options that the platform does not accept together."""
        if self.included_fields and self.excluded_fields:
            raise ConfigInvalid("fields are either included or excluded, not both")
        if instances_format is not InstancesFormat.JSONL:
            if self.instance_type or self.included_fields or self.excluded_fields:
                raise ConfigInvalid(
                    f"an instance type, and fields that are included or excluded, do not apply to {instances_format}"
                )
            if self.key_field and instances_format is InstancesFormat.FILE_LIST:
                raise ConfigInvalid("the files of a list have no key field")

    def instance(self, record: InputRecord, instances_format: InstancesFormat) -> BatchInstance:
        """The instance that is sent for a record."""
        value, fault = record.value, record.fault
        is_table = instances_format is InstancesFormat.CSV
        label = {_INSTANCE: list(value.values()) if is_table and type(value) is dict else value}
        if type(value) is not dict or instances_format is InstancesFormat.FILE_LIST:
            if self.key_field or self.included_fields or self.excluded_fields:
                fault = fault or "the instance is not an object and has no fields"
            if self.instance_type is InstanceType.OBJECT or (self.instance_type and type(value) is not list):
                fault = fault or f"the instance cannot be turned into an {self.instance_type}"
            return BatchInstance(value, label, fault)
        missing = [name for name in (self.key_field, *self.included_fields) if name and name not in value]
        if missing:
            fault = fault or f"the instance has no field '{missing[0]}'"
        if self.instance_type is InstanceType.ARRAY and not self.included_fields:
            fault = fault or "to make an array of an object its fields must be named, in their order"
        if fault:
            return BatchInstance(value, label, fault)
        names = self.included_fields or [name for name in value if name not in self.excluded_fields]
        sent = {name: value[name] for name in names if name != self.key_field}
        return BatchInstance(
            list(sent.values()) if is_table or self.instance_type is InstanceType.ARRAY else sent,
            {_KEY: value[self.key_field]} if self.key_field else label,
        )


_PREDICTIONS, _ERRORS = "predictions_0001.jsonl", "errors_0001.jsonl"


class BatchOutput(ExitStack):
    """Writes the files; a context manager. A missing `folder` is created, and each file with its first line."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigInvalid if the folder cannot be created or has the output of another job."""
        super().__init__()
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigInvalid(f"{folder} cannot be created: {error.strerror or error}") from error
        for name in (_PREDICTIONS, _ERRORS):
            if (folder / name).exists():
                raise ConfigInvalid(f"{folder / name} exists already", hint="name another folder for the output")

    def add_prediction(self, label: dict[str, Any], prediction: Any) -> None:
        self._add(_PREDICTIONS, {**label, "prediction": prediction})

    def add_error(self, label: dict[str, Any], code: Status, message: str) -> None:
        self._add(_ERRORS, {**label, "error": {"code": code, "message": message}})

    def _add(self, name: str, line: dict[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = self.enter_context((self._folder / name).open("xb"))
        self._files[name].write(write_json(line) + b"\n")


# On the platform several replicas share the input. The emulator has one replica and sends one request at a time.

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
    first_error: str = field(default="", compare=False)

    def add_failed(self, count: int, error: str) -> None:
        self.failed += count
        self.first_error = self.first_error or error

    def text(self) -> str:
        stopped = "" if self.is_whole else "; the job was stopped before the end of its input"
        error = f"; the first error: {self.first_error}" if self.first_error else ""
        return escaped(f"{self.predicted} instances predicted, {self.failed} failed{stopped}{error}")


def run_batch_job(options: BatchOptions, endpoint: Endpoint, is_stopped: Callable[[], bool]) -> BatchCounts:
    """Send requests to `endpoint` until the end of the input, or until `is_stopped` returns true.

    Raises ConfigInvalid for an input that cannot be read or an output folder that cannot be created, and OSError if
    writing the output fails.
    """
    counts = BatchCounts()
    with BatchOutput(options.output) as output:

        def valid() -> Iterator[BatchInstance]:
            """The instances that can be sent; the others are written as errors."""
            for record in read_records(options.input, options.instances_format):
                instance = options.config.instance(record, options.instances_format)
                if instance.fault:
                    counts.add_failed(1, instance.fault)
                    output.add_error(instance.label, Status.INVALID_ARGUMENT, instance.fault)
                else:
                    yield instance

        remaining = valid()
        while instances := list(islice(remaining, options.batch_size)):
            if is_stopped():
                return counts
            # All instances of a request get a prediction, or all get an error.
            try:
                request = predict_request([each.value for each in instances], options.parameters)
                values, _ = endpoint.predictions(request)
                if fault := request.miscount(values):
                    raise GoogleError(500, f"the container {fault}")
            except GoogleError as error:
                if is_stopped():
                    return counts
                counts.add_failed(len(instances), error.message)
                for each in instances:
                    output.add_error(each.label, error.status, f"Cannot get predictions. {error.message}")
                continue
            counts.predicted += len(instances)
            for each, value in zip(instances, values, strict=True):
                output.add_prediction(each.label, value)
    counts.is_whole = not is_stopped()
    return counts


class Storage:
    """Objects at `gs://` by the shell's settings, or those of an emulator at STORAGE_EMULATOR_HOST."""

    def __init__(self) -> None:
        """Raises ConfigInvalid without Google's SDK, which is an optional dependency."""
        try:
            import requests
            from google.api_core.exceptions import GoogleAPIError
            from google.auth.exceptions import GoogleAuthError
            from google.cloud.storage import Client
        except ImportError as error:
            raise ConfigInvalid(f"a job in Cloud Storage needs the extra gcs: {error}") from None
        self._client = Client(project=PROJECT_NUMBER)
        self._errors = (GoogleAPIError, GoogleAuthError, requests.RequestException)

    def fetch(self, uris: list[str], instances_format: str, folder: Path) -> Iterator[Path]:
        """The objects as files of `folder`; an address may have `*` in it. Raises ConfigInvalid."""
        with self._faults():
            for uri in uris:
                bucket, _, pattern = uri.removeprefix(STORAGE_SCHEME).partition("/")
                listed = self._client.list_blobs(bucket, prefix=pattern.partition("*")[0])
                found = [each for each in listed if fnmatchcase(each.name, pattern)]
                if not found:
                    raise ConfigInvalid(f"{uri} is not found")
                for blob in found:
                    content = blob.download_as_bytes()
                    if instances_format == InstancesFormat.FILE_LIST:
                        content = b"\n".join(self._listed(content, folder))
                    yield _written(folder, content)

    def _listed(self, names: bytes, folder: Path) -> Iterator[bytes]:
        """For each object that a list names, the name of its file in `folder`."""
        for name in names.decode(errors="replace").split():
            bucket, _, key = name.removeprefix(STORAGE_SCHEME).partition("/")
            blob = self._client.bucket(bucket).get_blob(key)
            yield name.encode() if blob is None else _written(folder, blob.download_as_bytes()).name.encode()

    def put(self, file: Path, uri: str) -> None:
        """Raises ConfigInvalid."""
        bucket, _, key = uri.removeprefix(STORAGE_SCHEME).partition("/")
        with self._faults():
            self._client.bucket(bucket).blob(key).upload_from_filename(str(file))

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise ConfigInvalid(f"Cloud Storage: {error}") from None


def _written(folder: Path, content: bytes) -> Path:
    descriptor, path = tempfile.mkstemp(dir=folder)
    with open(descriptor, "wb") as file:
        file.write(content)
    return Path(path)


StartForJob = Callable[[str, VertexLimits], tuple[RunningContainer, Callable[[], bool]]]


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
            end = {"state": "JOB_STATE_FAILED", "error": {"code": error.status, "message": error.message}}
        except ConfigInvalid as error:
            code = Status.INVALID_ARGUMENT
            end = {"state": "JOB_STATE_FAILED", "error": {"code": code, "message": error.message}}
        self._set(number, **end)

    def _predict(self, job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        storage, given = Storage(), job["inputConfig"]
        inputs = list(storage.fetch(given["gcsSource"]["uris"], given["instancesFormat"], folder))
        running, is_stopped = self._start(job["model"], batch_limits())
        try:
            if not running.wait_until_ready(is_stopped):
                raise impossible("Model server never became ready: the container has failed its probes")
            counts = [
                run_batch_job(_options(job, each, folder / "output" / str(place)), running.endpoint, is_stopped)
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
    error = {"code": Status.INVALID_ARGUMENT, "message": first_error}
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
