"""`trident emulate sagemaker` as a process, called by the real SDK."""

from __future__ import annotations

import contextlib
import re
import signal
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.contract.emulators.emulator_process import EmulatorProcess
from tests.contract.platforms.container import LIMIT_S
from tests.contract.sagemaker.sagemaker_archives import CSV

ROW = b"1,2,3,4\n"
_LATE = ("did not answer within", "did not accept a connection within")
_REPORT = re.compile(
    r"^(the container kept all limits of the platform"
    r"|\d+ breach(es)? of the platform's limits:\n(?P<lines>(  .*\n)+))",
    re.MULTILINE,
)
_URL = re.compile(r"the runtime API is at (\S+)\n")


class SageMakerEmulator(EmulatorProcess):
    """Called by the real SDK's `client`. On exit it ends.

    The exit status must be 1 if a limit was broken, else 0, or `status` where a test sets it.
    """

    platform = "sagemaker"
    open_text = "the runtime API is at"

    def __init__(
        self,
        folder: Path,
        model: Path | str,
        *options: str,
        ready: bool = True,
        nohup: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, str(model), *options, ready=ready, variables=variables)
        self.status: int | None = None
        self._is_nohup = nohup

    def __enter__(self) -> SageMakerEmulator:
        # Whether SIGHUP is ignored is inherited, and the test run itself may ignore it.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if self._is_nohup else signal.SIG_DFL)
        try:
            return super().__enter__()
        finally:
            signal.signal(signal.SIGHUP, before)

    def _on_open(self) -> None:
        self.client = self._held.enter_context(contextlib.closing(sdk(_URL.findall(self.text())[0])))

    def _check_end(self) -> None:
        assert self.end() == (len(self.report()) > 0 if self.status is None else self.status), self.text()

    def report(self) -> list[str]:
        """The breaches in the report at its end."""
        found = _REPORT.search(self.text())
        assert found is not None, self.text()
        return [line.strip() for line in (found["lines"] or "").splitlines()]

    def breaches(self) -> list[str]:
        """The breaches except those of time limits, which a busy machine may cause."""
        return [line for line in self.report() if not any(words in line for words in _LATE)]


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
