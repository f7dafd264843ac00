"""The emulators of S3 from which models are downloaded: separate processes, whose logs show the requests."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import boto3

from tests.contract.servers.ports import HOST, free_ports
from tests.project import ROOT

BUCKET = "bench"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0
POLL_S = 0.05
# moto copies the whole object for every range: with a file of 1 GB, sixteen requests would hold 16 GB at once.
MOTO_FILE_MEGABYTES = 16
# Environment of the clients, so that they use nothing that this machine has configured for AWS.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_REQUEST = re.compile(r'"([A-Z]+ \S+) HTTP/')


class Emulator:
    """A context manager: filled with objects on entry, gone on exit.

    `command` may contain `{port}`. `fill` gets the emulator's endpoint and uploads the objects.
    """

    def __init__(self, name: str, command: list[str], log: Path, fill: Callable[[str], None] | None = None) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        self.command = [part.format(port=self.port) for part in command]
        self.log = log
        self._fill = fill

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def repository(self) -> str:
        """The bucket's address for --model-repository."""
        return f"s3://{self.endpoint}/{BUCKET}"

    def __enter__(self) -> Emulator:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        try:
            self._wait_until_it_answers()
            if self._fill:
                self._fill(self.endpoint)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def requests(self) -> list[str]:
        """Method and target of every request so far."""
        return _REQUEST.findall(self.log.read_text(errors="replace"))

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended before it answered; its log is {self.log}")
            connection = http.client.HTTPConnection(HOST, self.port, timeout=START_LIMIT_S)
            try:
                connection.request("GET", "/")
                connection.getresponse().read()
                return
            except (OSError, http.client.HTTPException):
                time.sleep(POLL_S)
            finally:
                connection.close()
        raise RuntimeError(f"{self.name} does not answer after {START_LIMIT_S} s; its log is {self.log}")

    def _stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def is_listing(request: str) -> bool:
    return "list-type=2" in request


def file_server(folder: Path, log: Path) -> Emulator:
    """Serve `folder` as the bucket."""
    command = [sys.executable, "-m", "bench.repository.object_server", str(folder), "--port={port}"]
    return Emulator("file server", command, log)


def moto(folder: Path, log: Path) -> Emulator:
    """Upload a copy of the bucket's folder, in parts where the SDK chooses to."""

    def fill(endpoint: str) -> None:
        session = boto3.session.Session("bench", "bench-secret", region_name="us-east-1")
        client = session.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket=BUCKET)
        for path in sorted((folder / BUCKET).rglob("*")):
            if path.is_file():
                client.upload_file(str(path), BUCKET, path.relative_to(folder / BUCKET).as_posix())
        client.close()

    return Emulator("moto", [sys.executable, "-m", "moto.server", "-H", HOST, "-p", "{port}"], log, fill)


EMULATORS: dict[str, Callable[[Path, Path], Emulator]] = {"files": file_server, "moto": moto}


def file_megabytes(kind: str, megabytes: int) -> int:
    """The size of the files in which weights of `megabytes` lie in an emulator."""
    return MOTO_FILE_MEGABYTES if kind == "moto" else megabytes
