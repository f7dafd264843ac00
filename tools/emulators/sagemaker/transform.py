"""A batch transform job: the objects of its input are split into records, sent to the container and assembled again.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import orjson
from botocore.exceptions import BotoCoreError, ClientError

from trident.adapters.sagemaker.platform import BATCH, BATCH_STRATEGY, MAX_CONCURRENT_TRANSFORMS, MAX_PAYLOAD
from trident.core.errors import ConfigInvalid
from trident.tools.emulators.container import BreachReport, ContainerClient, ContainerFault, read_json, size, write_json

_MB = 1 << 20
_IN_FLIGHT_MB = 100
_DEFAULT_PAYLOAD_MB = 6
_TIMEOUT_S, _RETRIES = 600, 3
_PING_S = 2.0
_OK = 200


class TransformOptions:
    """`input` and `output` are folders or `s3://` prefixes. `job` has the parameters of CreateTransformJob.

    `variables` are what the platform sets in the container's environment.
    """

    def __init__(self, *, input: str, output: str, job: Mapping[str, Any]) -> None:
        """Raises ConfigInvalid for parameters that the platform does not accept together."""
        self.input, self.output, self.job = input, output, job
        self.source: dict[str, Any] = job.get("TransformInput", {})
        self.target: dict[str, Any] = job.get("TransformOutput", {})
        self.split_type = str(self.source.get("SplitType", "None"))
        types = self.source.get("ContentType", ""), self.target.get("Accept", "")
        self.processing = Processing(job.get("DataProcessing", {}), *types)
        named = {
            MAX_PAYLOAD: "MaxPayloadInMB",
            MAX_CONCURRENT_TRANSFORMS: "MaxConcurrentTransforms",
            BATCH_STRATEGY: "BatchStrategy",
        }
        given = {name: str(job[member]) for name, member in named.items() if member in job}
        self.variables: dict[str, str] = {BATCH: "true", **job.get("Environment", {}), **given}
        if self.split_type == "None" and self.job.get("BatchStrategy") == "MultiRecord":
            raise ConfigInvalid("BatchStrategy is MultiRecord and SplitType None", hint="records need a SplitType")
        if self.processing.is_used:
            if self.source.get("CompressionType", "None") != "None":
                raise ConfigInvalid("DataProcessing and a CompressionType exclude each other")
            if self.split_type == "Line" and self.target.get("AssembleWith", "None") != "Line":
                raise ConfigInvalid("DataProcessing of lines needs AssembleWith Line")
            if self.split_type not in ("None", "Line"):
                raise ConfigInvalid(f"DataProcessing does not apply to SplitType {self.split_type}")
        most = self.job.get("MaxPayloadInMB", _DEFAULT_PAYLOAD_MB) * max(1, self.job.get("MaxConcurrentTransforms", 1))
        if most > _IN_FLIGHT_MB:
            raise ConfigInvalid(
                f"MaxPayloadInMB times MaxConcurrentTransforms is {most}", hint=f"the platform takes {_IN_FLIGHT_MB}"
            )


class TransformFailed(Exception):
    """An object has no output. The text says why."""


class TransformJob:
    """Runs once, on one thread, which has others send the bodies. `say` gets a line for each object."""

    def __init__(
        self, options: TransformOptions, client: ContainerClient, report: BreachReport, say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._client = client
        self._report = report
        self._say = say
        self._objects = Objects()
        self._processing = options.processing
        configured = options.job.get("ModelClientConfig", {})
        self._timeout_s = float(configured.get("InvocationsTimeoutInSeconds", _TIMEOUT_S))
        self._tries = 1 + int(configured.get("InvocationsMaxRetries", _RETRIES))
        texts = {"Content-Type": options.source.get("ContentType"), "Accept": options.target.get("Accept")}
        self._headers = {name: text for name, text in texts.items() if text}

    def run(self, is_stopped: Callable[[], bool]) -> bool:
        """Return True if every object has its output. Raises ConfigInvalid for an input that cannot be listed."""
        found = self._execution_parameters()
        payload_mb = self._options.job.get("MaxPayloadInMB", found.get("MaxPayloadInMB", _DEFAULT_PAYLOAD_MB))
        at_once = self._options.job.get("MaxConcurrentTransforms") or found.get("MaxConcurrentTransforms", 1)
        self._most = payload_mb * _MB
        strategy = self._options.job.get("BatchStrategy") or found.get("BatchStrategy", "MultiRecord")
        self._is_single = strategy.replace("_", "").lower() == "singlerecord" or self._options.split_type == "None"
        done = failed = 0
        try:
            with ThreadPoolExecutor(max(1, at_once), "transform") as pool:
                for location, name in self._objects.below(self._options.input):
                    if is_stopped():
                        break
                    try:
                        content = self._transformed(self._objects.read(location), pool)
                        target = joined(self._options.output, f"{name}.out")
                        self._objects.write(target, content, self._headers.get("Accept", "application/octet-stream"))
                        done += 1
                    except (TransformFailed, ConfigInvalid) as error:
                        failed += 1
                        self._say(f"{location} has no output: {error}")
        finally:
            self._objects.close()
        stopped = "; the job was stopped before the end of its input" if is_stopped() else ""
        self._say(f"{done} objects transformed, {failed} failed{stopped}")
        return not (failed or stopped)

    def _execution_parameters(self) -> dict[str, Any]:
        """The container's proposals for members that the job lacks; empty without such a route."""
        with self._report.faults("GET /execution-parameters"):
            answer = self._client.ask("GET", "/execution-parameters", within_s=_PING_S)
            if answer.status == _OK:
                try:
                    found = orjson.loads(answer.body)
                    return {"MaxPayloadInMB": int(found["MaxPayloadInMB"]), **found}
                except (ValueError, KeyError, TypeError):
                    raise ContainerFault(f"answered {answer.text[:80]}") from None
        return {}

    def _transformed(self, content: bytes, pool: ThreadPoolExecutor) -> bytes:
        """The output of an object. Raises TransformFailed and ConfigInvalid."""
        if self._options.source.get("CompressionType") == "Gzip":
            try:
                content = gzip.decompress(content)
            except (OSError, EOFError) as error:
                raise TransformFailed(f"it is not compressed with gzip: {error}") from None
        records = split(content, self._options.split_type)
        parts = records if self._is_single else split(content, self._options.split_type, framed=True)
        answers = pool.map(self._answer, self._bodies(parts))
        end = b"\n" if self._options.target.get("AssembleWith") == "Line" else b""
        if not self._processing.is_used:
            return b"".join(answer if answer.endswith(end) else answer + end for answer in answers)
        found = [line for answer in answers for line in split(answer, self._options.split_type)]
        if len(found) != len(records):
            raise TransformFailed(f"{len(records)} records have {len(found)} answers, so they cannot be joined")
        pairs = zip(records, found, strict=True)
        return b"".join(self._processing.kept(record, answer) + end for record, answer in pairs)

    def _bodies(self, records: list[bytes]) -> Iterator[bytes]:
        """The bodies of requests: a record each, or as many as fit, which keep their frames."""
        end = b"\n" if self._options.split_type == "Line" and not self._is_single else b""
        body = b""
        for record in records:
            part = self._processing.sent(record) + end
            if self._most and len(part) > self._most:
                raise TransformFailed(f"a record of {len(part)} bytes, where MaxPayloadInMB allows {size(self._most)}")
            if body and (self._is_single or (self._most and len(body) + len(part) > self._most)):
                yield body
                body = b""
            body += part
        if body:
            yield body

    def _answer(self, body: bytes) -> bytes:
        """The container's answer, after as many tries as the job allows. Raises TransformFailed."""
        attempt = 0
        while attempt < self._tries:
            attempt += 1
            try:
                answer = self._client.ask(
                    "POST", "/invocations", headers=self._headers, body=body, within_s=self._timeout_s
                )
            except ContainerFault as fault:
                self._report.add(f"POST /invocations: the container {fault}")
                reason = f"the container {fault}"
            else:
                if answer.status == _OK:
                    return answer.body
                reason = f"the container answered {answer.status}: {answer.text[:300]}"
                if answer.status < 500:
                    break
        raise TransformFailed(f"{reason}{f' (tried {attempt} times)' if attempt > 1 else ''}")


S3_SCHEME = "s3://"


class Objects:
    """Reads and writes the objects at `s3://bucket/key` and at paths. Any thread."""

    def __init__(self) -> None:
        self._made: Any = None

    @property
    def _s3(self) -> Any:
        if self._made is None:
            self._made = boto3.session.Session().client("s3")
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def below(self, location: str) -> Iterator[tuple[str, str]]:
        """The objects of a prefix, a folder or a file: where each is, and its name in there. Raises ConfigInvalid."""
        if not location.startswith(S3_SCHEME):
            path = Path(location)
            if not path.exists():
                raise ConfigInvalid(f"there is no {path}", hint="name a file, a folder or s3://bucket/prefix")
            for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
                yield str(file), file.relative_to(path).as_posix() if path.is_dir() else file.name
            return
        bucket, prefix = _parts(location)
        folder = prefix[: prefix.rfind("/") + 1]
        try:
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for found in (each for page in pages for each in page.get("Contents", ())):
                if not found["Key"].endswith("/"):
                    yield f"{S3_SCHEME}{bucket}/{found['Key']}", found["Key"].removeprefix(folder)
        except (ClientError, BotoCoreError) as error:
            raise ConfigInvalid(f"{location} cannot be listed: {error}") from None

    def read(self, location: str) -> bytes:
        """Raises ConfigInvalid."""
        try:
            if not location.startswith(S3_SCHEME):
                return Path(location).read_bytes()
            bucket, key = _parts(location)
            content: bytes = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except (ClientError, BotoCoreError, OSError) as error:
            raise ConfigInvalid(f"{location} cannot be read: {error}") from None
        return content

    def write(self, location: str, content: bytes, content_type: str) -> None:
        """Raises ConfigInvalid."""
        try:
            if location.startswith(S3_SCHEME):
                bucket, key = _parts(location)
                self._s3.put_object(Bucket=bucket, Key=key, Body=content, ContentType=content_type)
            else:
                Path(location).parent.mkdir(parents=True, exist_ok=True)
                Path(location).write_bytes(content)
        except (ClientError, BotoCoreError, OSError) as error:
            raise ConfigInvalid(f"{location} cannot be written: {error}") from None


def joined(location: str, name: str) -> str:
    return f"{location.rstrip('/')}/{name}"


def _parts(location: str) -> tuple[str, str]:
    bucket, _, key = location.removeprefix(S3_SCHEME).partition("/")
    return bucket, key


OUTPUT, INPUT = "SageMakerOutput", "SageMakerInput"
_CSV, _JSON, _LINES = "text/csv", "application/json", "application/jsonlines"


def split(content: bytes, split_type: str, *, framed: bool = False) -> list[bytes]:
    """The records of an object, without their line breaks, and without their frames unless `framed`.

    Raises ConfigInvalid for broken frames.
    """
    if split_type == "Line":
        return [line for line in (each.rstrip(b"\r") for each in content.split(b"\n")) if line]
    if split_type in _FRAMES:
        try:
            places = list(_FRAMES[split_type](content))
        except struct.error:
            raise ConfigInvalid(f"the object is not in the format {split_type}") from None
        return [content[frame if framed else record] for frame, record in places]
    return [content]


# Where a frame and the record in it are.
_Place = tuple[slice, slice]


def _recordio(content: bytes) -> Iterator[_Place]:
    at = 0
    while at < len(content):
        magic, length = struct.unpack_from("<II", content, at)
        length &= (1 << 29) - 1
        if magic != 0xCED7230A or at + 8 + length > len(content):
            raise struct.error
        end = at + 8 + length + -length % 4
        yield slice(at, end), slice(at + 8, at + 8 + length)
        at = end


def _tfrecord(content: bytes) -> Iterator[_Place]:
    at = 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        end = at + 16 + length
        if end > len(content):
            raise struct.error
        yield slice(at, end), slice(at + 12, at + 12 + length)
        at = end


_FRAMES: dict[str, Callable[[bytes], Iterator[_Place]]] = {"RecordIO": _recordio, "TFRecord": _tfrecord}

_STEP = re.compile(r"""\.(?P<name>[A-Za-z_]\w*)|\[(?P<inside>'[^']*'(?:\s*,\s*'[^']*')*|[-0-9:,\s]+)\]""")


class JsonPath:
    """A path in the platform's part of JSONPath: `.name`, `['a','b']`, `[0,2]` and `[1:3]` behind `$`."""

    def __init__(self, text: str) -> None:
        """Raises ConfigInvalid for another expression."""
        self.text = text or "$"
        self._steps: list[list[Any]] = []
        at = 1
        while self.text[0] == "$" and (found := _STEP.match(self.text, at)):
            inside = found["inside"] or ""
            parts = re.findall(r"'[^']*'", inside) if inside.startswith("'") else inside.split(",")
            self._steps.append([found["name"]] if found["name"] else [_part(each.strip()) for each in parts])
            at = found.end()
        if self.text[0] != "$" or at != len(self.text):
            raise ConfigInvalid(
                f"'{text}' is not a path that the platform takes",
                hint="it knows $, .name, ['name', …], [number, …] and [from:to], but no *, .., or conditions",
            )

    def __bool__(self) -> bool:
        return bool(self._steps)

    def select(self, value: Any) -> Any:
        """The selected part; several names give an object, several places a list. Raises ConfigInvalid for none."""
        try:
            for parts in self._steps:
                is_place = not isinstance(parts[0], str)
                if is_place and not isinstance(value, list):
                    raise TypeError
                if len(parts) == 1:
                    value = value[parts[0]]
                elif is_place:
                    value = [
                        each for part in parts for each in (value[part] if isinstance(part, slice) else [value[part]])
                    ]
                else:
                    value = {name: value[name] for name in parts}
        except (KeyError, IndexError, TypeError):
            raise ConfigInvalid(f"a record has nothing at {self.text}") from None
        return value


def _part(text: str) -> str | int | slice:
    if text.startswith("'"):
        return text[1:-1]
    try:
        if ":" in text:
            low, high = text.split(":")
            return slice(int(low) if low else None, int(high) if high else None)
        return int(text)
    except ValueError:
        raise ConfigInvalid(f"'[{text}]' is not an index of a path", hint="such as [0], [0,2] or [1:]") from None


class Processing:
    """Filters a record before it is sent, and joins its answer with it."""

    def __init__(self, given: dict[str, Any], content_type: str, accept: str) -> None:
        """`given` is the API's DataProcessing. Raises ConfigInvalid for types that it cannot have."""
        self._before, self._after = JsonPath(given.get("InputFilter", "")), JsonPath(given.get("OutputFilter", ""))
        self._joins = given.get("JoinSource", "None") == "Input"
        self._type, self._accept = (each.partition(";")[0].strip() for each in (content_type, accept or content_type))
        known = {_CSV: _CSV, _JSON: _JSON, _LINES: _JSON}
        if self.is_used and known.get(self._type, "a") != known.get(self._accept, "b"):
            raise ConfigInvalid(
                f"records of {self._type} and answers of {self._accept} cannot be filtered or joined",
                hint=f"both are {_CSV}, or both JSON",
            )

    @property
    def is_used(self) -> bool:
        return bool(self._before) or bool(self._after) or self._joins

    def sent(self, record: bytes) -> bytes:
        return self._written(self._before.select(self._read(record))) if self._before else record

    def kept(self, record: bytes, answer: bytes) -> bytes:
        """Return the output for `record`. Raises ConfigInvalid."""
        if not (self._joins or self._after):
            return answer
        found = self._read(answer)
        if self._joins:
            whole = self._read(record)
            if self._type == _CSV:
                found = [*whole, *found]
            elif isinstance(whole, dict):
                found = {**whole, OUTPUT: found}
            else:
                found = {INPUT: whole, OUTPUT: found}
        return self._written(self._after.select(found))

    def _read(self, text: bytes) -> Any:
        try:
            if self._type == _CSV:
                return next(csv.reader([text.decode()]), [])
            return read_json(text)
        except (ValueError, csv.Error) as error:
            raise ConfigInvalid(f"a record is not {self._type}: {error}") from None

    def _written(self, value: Any) -> bytes:
        if self._type != _CSV:
            return write_json(value)
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow(value if isinstance(value, list) else [value])
        return row.getvalue().encode()
