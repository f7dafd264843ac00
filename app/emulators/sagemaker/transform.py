"""A batch transform job: the objects of its input are split, sent to the container and assembled again.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from trident.adapters.sagemaker.settings import BATCH, BATCH_STRATEGY, MAX_CONCURRENT_TRANSFORMS, MAX_PAYLOAD
from trident.app.emulators.container import ContainerClient, ContainerFault
from trident.app.emulators.report import BreachReport, size
from trident.app.emulators.sagemaker.objects import Objects, joined
from trident.app.emulators.sagemaker.records import Processing, split
from trident.core.errors import ConfigInvalid

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
        self._check()

    def _check(self) -> None:
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
        """Whether every object has its output. Raises ConfigInvalid for an input that cannot be listed."""
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
        """What the container proposes for members that the job does not have; nothing if it has no such route."""
        try:
            answer = self._client.ask("GET", "/execution-parameters", within_s=_PING_S)
        except ContainerFault as fault:
            self._report.add(f"GET /execution-parameters: the container {fault}")
            return {}
        if answer.status != _OK:
            return {}
        try:
            found = orjson.loads(answer.body)
            return {"MaxPayloadInMB": int(found["MaxPayloadInMB"]), **found}
        except (ValueError, KeyError, TypeError):
            self._report.add(f"GET /execution-parameters: the container answered {answer.text[:80]}")
            return {}

    def _transformed(self, content: bytes, pool: ThreadPoolExecutor) -> bytes:
        """The output of an object. Raises TransformFailed and ConfigInvalid."""
        if self._options.source.get("CompressionType") == "Gzip":
            try:
                content = gzip.decompress(content)
            except (OSError, EOFError) as error:
                raise TransformFailed(f"it is not compressed with gzip: {error}") from None
        records = split(content, self._options.split_type)
        answers = pool.map(self._answer, self._bodies(records))
        end = b"\n" if self._options.target.get("AssembleWith") == "Line" else b""
        if not self._processing.is_used:
            return b"".join(answer if answer.endswith(end) else answer + end for answer in answers)
        found = [line for answer in answers for line in split(answer, self._options.split_type)]
        if len(found) != len(records):
            raise TransformFailed(f"{len(records)} records have {len(found)} answers, so they cannot be joined")
        pairs = zip(records, found, strict=True)
        return b"".join(self._processing.kept(record, answer) + end for record, answer in pairs)

    def _bodies(self, records: list[bytes]) -> Iterator[bytes]:
        """The bodies of requests: a record each, or as many as fit."""
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
