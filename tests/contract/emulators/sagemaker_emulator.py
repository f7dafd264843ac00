"""`trident emulate sagemaker` as a process, called by the real SDK, and the check that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.contract.emulators.emulator_thread import container_members
from tests.contract.sagemaker.sagemaker_archives import CSV
from tests.contract.sagemaker.sagemaker_container import LIMIT_S, platform_environment
from tests.contract.servers.session import TRIDENT, start_session
from tests.waiting import until

ROW = b"1,2,3,4\n"
_LATE = ("did not answer within", "did not accept a connection within")
_REPORT = re.compile(
    r"^(the container kept all limits of the platform"
    r"|\d+ breach(es)? of the platform's limits:\n(?P<lines>(  .*\n)+))",
    re.MULTILINE,
)
_URL = re.compile(r"the runtime API is at (\S+)\n")


class SageMakerEmulator:
    """A context manager: its API is open on entry, unless `ready` is false. On exit it ends.

    The exit status must be 1 if a limit was broken, else 0, or `status` where a test sets it. Its container and its
    temporary files must be gone by then. The log is in `folder`. `variables` are added to the environment.
    """

    def __init__(
        self,
        folder: Path,
        model: Path | str,
        *options: str,
        ready: bool = True,
        nohup: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.status: int | None = None
        # Not in `folder`: the address of a socket is short.
        self._temporary = tempfile.TemporaryDirectory()
        self.temporary = Path(self._temporary.name)
        self._log = folder / "log"
        self._arguments = [str(model), *options]
        self._ready = ready
        self._is_nohup = nohup
        self._variables = variables

    def __enter__(self) -> SageMakerEmulator:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        # Whether SIGHUP is ignored is inherited, and the test run itself may ignore it.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if self._is_nohup else signal.SIG_DFL)
        try:
            self.process = self._started()
        finally:
            signal.signal(signal.SIGHUP, before)
        try:
            if self._ready:
                self.wait_for_text("the runtime API is at")
                self.client = sdk(_URL.findall(self.text())[0])
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self.end() == (len(self.report()) > 0 if self.status is None else self.status), self.text()
                assert self.container_members() == []
                assert list(self.temporary.iterdir()) == []
        finally:
            self._clear()
            if self._ready:
                self.client.close()

    def end(self, number: int = signal.SIGINT) -> int:
        """Send the signal of Ctrl-C, or another. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def text(self) -> str:
        """The output of the emulator and its container."""
        return self._log.read_text(errors="replace")

    def report(self) -> list[str]:
        """The breaches in the report at its end."""
        found = _REPORT.search(self.text())
        assert found is not None, self.text()
        return [line.strip() for line in (found["lines"] or "").splitlines()]

    def breaches(self) -> list[str]:
        """The breaches except those of time limits, which a busy machine may cause."""
        return [line for line in self.report() if not any(words in line for words in _LATE)]

    def wait_for_text(self, text: str) -> None:
        until(lambda: text in self.text() or self.process.poll() is not None, self.text)
        assert text in self.text(), self.text()

    def container_members(self) -> list[int]:
        """The processes of its container."""
        return [member for member in container_members(self.temporary) if member != self.process.pid]

    def _started(self) -> subprocess.Popen[bytes]:
        # ONNX Runtime would write a file there.
        variables = {"TMPDIR": str(self.temporary), "ORT_DISABLE_TELEMETRY": "1", **self._variables}
        command = [TRIDENT, "emulate", "sagemaker", *self._arguments]
        return start_session(command, self._log, env=platform_environment(variables))

    def _clear(self) -> None:
        for member in self.container_members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._temporary.cleanup()


def sdk(url: str) -> Any:
    """The real SDK's client, made as the README shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some versions of the SDK, about their own code
        return boto3.client(
            "sagemaker-runtime",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"max_attempts": 0}, proxies={}, connect_timeout=LIMIT_S, read_timeout=2 * LIMIT_S),
        )


def call(emulator: SageMakerEmulator, body: bytes = ROW, **more: str) -> Any:
    """The SDK's answer. `Body` is the content."""
    given = {"EndpointName": "any", "ContentType": CSV, "Accept": CSV, **more}
    answer = emulator.client.invoke_endpoint(Body=body, **given)
    return {**answer, "Body": answer["Body"].read()}


def refusal(emulator: SageMakerEmulator, kind: str, body: bytes = ROW, **more: str) -> Any:
    """The response of the error that the SDK must raise. Its class is `kind`."""
    with pytest.raises(ClientError) as raised:
        call(emulator, body, **more)
    assert type(raised.value).__name__ in (kind, "ClientError")
    found = response(raised.value)
    assert found["Error"]["Code"] == kind
    return found


def response(error: ClientError) -> Mapping[str, Any]:
    """The response of an error. `status` is the HTTP status of the API, `text` the message."""
    found: dict[str, Any] = {**error.response}
    return {**found, "status": found["ResponseMetadata"]["HTTPStatusCode"], "text": found["Error"]["Message"]}
