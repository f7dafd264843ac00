"""A server of front ends and an engine process, and its processes, files and clients in tests of faults."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import engine_of, front_ends_of
from tests.contract.servers.server import STOP_LIMIT_S, ServerProcess, environment_without
from tests.contract.servers.session import session_members
from tests.contract.servers.simple_model import PATH, good_body, is_good_answer
from tests.waiting import until

LIMIT_S = 60.0
# A refused client pauses, or it would take the processor that the restart needs.
_BETWEEN_S = 0.05
# A file that ONNX Runtime leaves in every temporary folder.
ORT_SESSION = ".ses"


class RemoteServer(ServerProcess):
    """A server of front ends with its own folder for temporary files. It must leave nothing, however it ends.

    `folder` keeps the log. With `beside` it shares the temporary folder of another server.
    """

    def __init__(
        self,
        repository: Path,
        folder: Path,
        *options: str,
        workers: int = 2,
        ready: bool = True,
        beside: RemoteServer | None = None,
    ) -> None:
        self._is_guest = beside is not None
        # Not in `folder`: the address of a socket is short.
        self.temporary: Path = beside.temporary if beside else Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
        environment = {**environment_without("TRIDENT_"), "TMPDIR": str(self.temporary)}
        mode = (f"--http-workers={workers}", "--shutdown-grace-secs=0")
        super().__init__(repository, folder / "log", *mode, *options, ready=ready, environment=environment)

    def __enter__(self) -> RemoteServer:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ends_well = kind is None and not self.was_killed
        try:
            super().__exit__(kind, error, trace)
            if ends_well:
                self.assert_gone()
        finally:
            if not self._is_guest:
                shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def engine(self) -> int:
        """The process of the engine, once it has loaded its backend."""

        def found() -> int:
            with contextlib.suppress(ValueError, FileNotFoundError, ProcessLookupError):
                return engine_of(self)
            return 0

        return int(until(found, "there is no engine"))

    @property
    def front_ends(self) -> list[int]:
        engine = self.engine
        return until(lambda: [one for one in front_ends_of(self) if one != engine], "there are no front ends")

    def says(self, text: str) -> bool:
        return text in self.log_text()

    def is_live(self) -> bool:
        """True if a front end answers the liveness probe with 200."""
        return self._says("live")

    def is_ready(self) -> bool:
        """True if a front end answers the readiness probe with 200."""
        return self._says("ready")

    def _says(self, health: str) -> bool:
        try:
            return self.request("GET", f"/v2/health/{health}")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait_until_all_ready(self) -> None:
        """Wait until every front end is ready. Many connections are spread over all of them."""
        until(lambda: all(self.is_ready() for _ in range(20)), f"not ready again\n{self.log_text()[-3000:]}")

    def kill_engine(self, number: int = signal.SIGKILL) -> int:
        """End the engine with a signal. Returns its process id."""
        engine = self.engine
        os.kill(engine, number)
        until(lambda: engine not in session_members(self.process.pid), "the engine lives on")
        return engine

    def restart_engine(self) -> None:
        """Kill the engine, and wait until every front end has noticed that and is ready with the next one."""
        lost = len(self.front_ends) + self._losses()
        self.kill_engine()
        until(lambda: self._losses() >= lost, "a front end has not noticed the loss of the engine")
        self.wait_until_all_ready()

    def _losses(self) -> int:
        return self.log_text().count("lost the connection to the engine")

    def left(self) -> list[str]:
        """The processes, files and open ports of the server."""
        found = [f"process {member}" for member in session_members(self.process.pid)]
        pattern = f"trident-{self.process.pid}-*" if self._is_guest else "*"
        found += [f"file {path}" for path in self.temporary.glob(pattern) if path.name != ORT_SESSION]
        for port in (self.http_port, self.metrics_port):
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    found.append(f"port {port}")
        return found

    def assert_gone(self, limit_s: float = LIMIT_S) -> None:
        until(lambda: not self.left(), lambda: f"{self.left()}\n{self.log_text()[-3000:]}", limit_s=limit_s)

    def ended(self) -> int:
        """Wait for the end. Returns the exit status."""
        return self.process.wait(STOP_LIMIT_S)


class Client:
    """A connection that is opened again after its end; a context manager."""

    def __init__(self, server: ServerProcess, timeout_s: float = LIMIT_S) -> None:
        self._connection = http.client.HTTPConnection(HOST, server.http_port, timeout=timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Returns status and body. Raises OSError or HTTPException without an answer."""
        try:
            self.send(method, path, body, headers)
            return self.answer()
        except BaseException:
            self._connection.close()
            raise

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> None:
        self._connection.request(method, path, body=body, headers=headers or {})

    def answer(self) -> tuple[int, bytes]:
        response = self._connection.getresponse()
        self.headers = response.headers
        return response.status, response.read()


class Traffic:
    """Clients that send requests in a loop, to the `simple` model unless told otherwise; a context manager.

    `answers` counts statuses, `texts` the errors of other statuses than 200. `wrong` are answers with status 200 and
    the numbers of another request, `lost` the errors of requests without an answer.
    """

    def __init__(
        self,
        server: ServerProcess,
        clients: int = 8,
        *,
        path: str = PATH,
        body: Callable[[int], bytes] = good_body,
        is_right: Callable[[bytes, int], bool] = is_good_answer,
    ) -> None:
        self._server = server
        self._path = path
        self._body = body
        self._is_right = is_right
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]
        # Of each client, the requests that it has begun.
        self._begun = [0] * clients
        self._lock = threading.Lock()
        self.answers: Counter[int] = Counter()
        self.texts: Counter[str] = Counter()
        self.wrong: list[bytes] = []
        self.lost: list[BaseException] = []

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, requests: int = 50) -> None:
        """Wait for as many more good answers."""
        before = self.answers[200]
        until(lambda: self.answers[200] >= before + requests, f"no more good answers: {self}")

    def wait_for_all(self) -> None:
        """Wait until the answer of each request that is under way has been checked."""
        before = list(self._begun)
        until(lambda: all(now > then for now, then in zip(self._begun, before, strict=True)), f"one hangs: {self}")

    def _run(self, number: int) -> None:
        seed = 1000 * number
        with Client(self._server) as client:
            while not self._stop.is_set():
                seed += 1
                self._begun[number] += 1
                try:
                    status, answer = client.ask("POST", self._path, self._body(seed))
                except (OSError, http.client.HTTPException) as error:
                    with self._lock:
                        self.lost.append(error)
                    self._stop.wait(_BETWEEN_S)
                    continue
                with self._lock:
                    self.answers[status] += 1
                    if status != 200:
                        self.texts[json.loads(answer)["error"]] += 1
                    elif not self._is_right(answer, seed):
                        self.wrong.append(answer)
                if status != 200:
                    self._stop.wait(_BETWEEN_S)

    def __str__(self) -> str:
        return f"{dict(self.answers)}, {len(self.wrong)} wrong, lost {self.lost[:3]}, {dict(self.texts)}"


@contextlib.contextmanager
def undisturbed(server: ServerProcess, clients: int = 4, **more: Any) -> Iterator[Traffic]:
    """Traffic in which every request must be answered well. `more` is as in `Traffic`."""
    with Traffic(server, clients, **more) as traffic:
        yield traffic
        traffic.wait_for_more()
    assert (set(traffic.answers), traffic.wrong, traffic.lost) == ({200}, [], []), str(traffic)


def readiness(server: ServerProcess) -> dict[str, Any]:
    """The body of the readiness probe."""
    status, _, body = server.request("GET", "/v2/health/ready")
    assert status in (200, 400), body
    found: dict[str, Any] = json.loads(body or b"{}")
    return found


def long_request(rounds: int = 500_000) -> bytes:
    """A request that keeps the model `waiting` busy. A core makes some hundred thousand rounds per second."""
    return json.dumps({"inputs": [{"name": "ROUNDS", "datatype": "INT64", "shape": [1], "data": [rounds]}]}).encode()


FOR_EVER = 2_000_000_000


def pending(server: RemoteServer, model: str) -> float:
    """The number of queued requests."""
    return server.metric("nv_inference_pending_request_count", f'model="{model}"')


def private_directory(server: RemoteServer) -> Path:
    (found,) = server.temporary.glob("trident-*")
    return found


def resident_kb(process: int, field: str = "VmRSS") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
