"""The log file of a server whose processes all write to it: rotated by SIGUSR1, and removed.

Source: docs/spec/trace-and-log.md "In Trident".
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import PATH, good_document
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

CLIENTS = 4
# Longer than the buffers of Python's files.
LONG = "x" * 20000


class LoggingServer:
    """A server that logs each request into `file`."""

    def __init__(self, server: ServerProcess, file: Path) -> None:
        self.server = server
        self.file = file

    def infer(self, request_id: str) -> None:
        body = json.dumps({**good_document(), "id": request_id}).encode()
        assert self.server.request("POST", PATH, body)[0] == 200

    def opened_by(self, path: Path) -> list[int]:
        """The server's processes that have `path` open."""
        wanted = os.stat(path).st_ino if path.exists() else None
        return [pid for pid in session_members(self.server.process.pid) if wanted in open_inodes(pid)]


def open_inodes(pid: int) -> set[int]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.add(link.stat().st_ino)
        except OSError:
            continue
    return found


@pytest.fixture
def logging_server(http_workers: str, shipped_models: Path, tmp_path: Path) -> Iterator[LoggingServer]:
    file = tmp_path / "server.log"
    options = ("--shutdown-grace-secs=0", f"--log-file={file}", "--log-format=json", "--log-access=true")
    with ServerProcess(shipped_models, tmp_path / "console", *options) as server:
        yield LoggingServer(server, file)
    assert (tmp_path / "console").read_text() == ""


def request_ids(*files: Path) -> list[str]:
    """The ids of the requests in the access log. Every line must be whole, except one that is being written."""
    events = [json.loads(line) for file in files for line in file.read_text().split("\n")[:-1]]
    return [event["request_id"].partition("-")[0] for event in events if event.get("request_id")]


def test_rotation_under_load_loses_and_tears_no_line(logging_server: LoggingServer) -> None:
    file = logging_server.file
    is_over = threading.Event()
    asked = [0] * CLIENTS

    def load(client: int) -> None:
        while not is_over.is_set():
            logging_server.infer(f"{client}.{asked[client]}-{LONG}")
            asked[client] += 1

    clients = [threading.Thread(target=load, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    moved = []
    try:
        for number in range(3):
            before = file.stat().st_size
            until(lambda size=before: file.stat().st_size > size + 100_000)
            moved.append(file.rename(file.with_name(f"server.log.{number}")))
            os.kill(logging_server.server.process.pid, signal.SIGUSR1)
            until(file.exists)
    finally:
        is_over.set()
        for client in clients:
            client.join()
    until(lambda: not any(logging_server.opened_by(each) for each in moved), "an idle process has the old file open")
    wanted = sorted(f"{client}.{number}" for client in range(CLIENTS) for number in range(asked[client]))
    until(lambda: len(request_ids(*moved, file)) >= len(wanted))
    assert sorted(request_ids(*moved, file)) == wanted


def test_removed_log_file_is_created_again(logging_server: LoggingServer) -> None:
    logging_server.file.unlink()
    for number in range(8):
        logging_server.infer(str(number))
    wanted = [str(number) for number in range(8)]
    until(logging_server.file.exists)
    until(lambda: sorted(request_ids(logging_server.file)) == wanted)


def test_logging_continues_when_the_log_folder_is_removed(logging_server: LoggingServer) -> None:
    away = logging_server.file.parent.with_name("away")
    logging_server.file.parent.rename(away)
    try:
        os.kill(logging_server.server.process.pid, signal.SIGUSR1)
        until(lambda: "the log goes on in the file from before" in (away / "console").read_text())
        logging_server.infer("one")
        until(lambda: request_ids(away / "server.log") == ["one"])
    finally:
        away.rename(logging_server.file.parent)
        (away.parent / logging_server.file.parent.name / "console").write_text("")
