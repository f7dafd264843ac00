"""Both ends of the socket between front ends and the engine, for tests: a served engine, and a client by hand."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.fake_engine import FakeEngine
from tests.waiting import until
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import BY_NAME, Array, Buffer
from trident.core.interprocess.frames import Frame, FrameReader, frame
from trident.core.observability.statistics import MetricsSnapshot
from trident.core.remote.engine_client import RemoteEngine
from trident.core.remote.engine_server import EngineServer
from trident.core.remote.pool import EnginePool
from trident.core.remote.wire import HELLO, TO_FRONT_END
from trident.core.waiting import Mailbox, ThreadMailbox

LIMIT_S = 30.0
PAGE = 4096
SHARED = 64 * PAGE
HALF = SHARED // 2
SMALL = np.arange(4, dtype=np.int32)
_LOOK_SECONDS = 0.05


def numbers(values: Array, name: str = "IN", datatype: str = "INT32", **fields: Any) -> InferenceRequest:
    return InferenceRequest("simple", [InputTensor(name, datatype, values.shape, values)], **fields)


def echo(request: InferenceRequest) -> InferenceResponse:
    """Each input as an output, copied, because the outputs of a model are not its inputs."""
    outputs = []
    for tensor in request.inputs:
        array = np.frombuffer(tensor.data, BY_NAME[tensor.datatype].dtype).reshape(tensor.shape).copy()
        outputs.append(OutputTensor(tensor.name, tensor.datatype, tensor.shape, array))
    return InferenceResponse(request.model_name, 1, outputs, id=request.id, parameters=request.parameters)


class ServedEngine(FakeEngine):
    """A fake engine with the attributes that the server reads besides the protocol."""

    def __init__(self, respond: Callable[[InferenceRequest], InferenceResponse | None] = echo) -> None:
        super().__init__(respond)
        self.generation = 1
        self.snapshot = MetricsSnapshot()

    def metrics(self) -> MetricsSnapshot:
        return self.snapshot


@contextmanager
def served(folder: Path, engine: Any, **options: Any) -> Iterator[tuple[str, EngineServer]]:
    """The path of the socket that serves `engine`, and the server."""
    path = str(folder / "engine.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(128)
    server = EngineServer(engine, listener, **options)
    server.start()
    try:
        yield path, server
    finally:
        server.stop()
        os.unlink(path)


class ThreadLink:
    """Drives the connection on a native thread, as a front end does on its hub."""

    def __init__(self) -> None:
        self._engine: RemoteEngine | None = None
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._asked = False
        self._is_closing = False
        self._own_thread = threading.Thread(target=self._drive, name="trident-engine-link", daemon=True)

    def start(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._own_thread.start()

    def wake(self) -> None:
        if not self._asked:
            self._asked = True
            self._signal()

    def mailbox(self) -> Mailbox[Any]:
        return ThreadMailbox()

    def close(self) -> None:
        self._is_closing = True
        self._signal()
        if self._own_thread.is_alive():
            self._own_thread.join()
        self._awake.close()
        self._waker.close()

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # full of signals, or closed: memory may be freed even after `close`
            self._waker.send(b"\0")

    def _drive(self) -> None:
        engine = self._engine
        assert engine is not None
        while not self._is_closing:
            engine.look()
            with selectors.DefaultSelector() as selector:
                sock = engine.sock
                selector.register(self._awake, selectors.EVENT_READ)
                if sock is not None:
                    write = selectors.EVENT_WRITE if engine.wants_to_write else 0
                    selector.register(sock, selectors.EVENT_READ | write)
                ready = {key.fileobj: events for key, events in selector.select(_LOOK_SECONDS)}
            if self._awake in ready:
                # In this order: a signal that this takes must not leave `_asked` set.
                self._awake.recv(4096)
                self._asked = False
                engine.flush()
            events = ready.get(sock, 0) if sock is not None else 0
            if events & selectors.EVENT_WRITE:
                engine.flush()
            if events & selectors.EVENT_READ:
                engine.read()


@contextmanager
def connected(path: str, memory_bytes: int = SHARED, *, ready: bool = True) -> Iterator[RemoteEngine]:
    """The client of a front end, connected unless it is not awaited."""
    engine = RemoteEngine(path, ThreadLink(), memory_bytes)
    engine.start()
    try:
        if ready:
            until(engine.is_ready, "not connected")
        yield engine
    finally:
        engine.close()


class Answer:
    """The responses to one request."""

    def __init__(self, request: InferenceRequest) -> None:
        self.pending = PendingRequest(request, self.take)
        self.responses: list[InferenceResponse] = []
        self._is_whole = threading.Event()

    def take(self, response: InferenceResponse) -> None:
        self.responses.append(response)
        if response.final:
            self._is_whole.set()

    @property
    def is_there(self) -> bool:
        return self._is_whole.is_set()

    def get(self) -> InferenceResponse:
        """The last response. Blocks until it arrives."""
        assert self._is_whole.wait(LIMIT_S), "no answer"
        return self.responses[-1]


def ask(engine: Any, request: InferenceRequest) -> Answer:
    answer = Answer(request)
    engine.model(request.model_name, request.model_version).submit(answer.pending)
    return answer


def sealed_memory(size: int = SHARED, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    """The descriptor of new shared memory."""
    descriptor = os.memfd_create("test-shared-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class ByHand:
    """A front end that sends whatever the test wants; a context manager. `sock` blocks, with a limit."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(LIMIT_S)
        self._reader = FrameReader(TO_FRONT_END, "peer")
        self._frames: list[Frame] = []

    @classmethod
    def at(cls, path: str) -> ByHand:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        return cls(sock)

    def __enter__(self) -> ByHand:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, content: Buffer) -> None:
        self.sock.sendall(content)

    def send_hello(self, descriptors: Iterable[int]) -> None:
        """Send a greeting with these descriptors, which this closes."""
        handed = list(descriptors)
        try:
            socket.send_fds(self.sock, [frame(HELLO, 1)], handed)
        finally:
            for descriptor in handed:
                os.close(descriptor)

    def greet(self) -> ByHand:
        """Greet as a front end does."""
        self.send_hello([sealed_memory()])
        return self

    def next(self) -> Frame:
        """The next frame. Blocks until it arrives."""
        while not self._frames:
            chunk = self.sock.recv(1 << 16)
            assert chunk, "the connection has ended"
            self._frames = self._reader.feed(chunk)
        return self._frames.pop(0)

    def is_cut_off(self) -> bool:
        """Read to the end of the connection; True if the engine ended it."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True


def descriptors() -> int:
    """The number of this process's descriptors, without garbage, the pollers of links, and files that threads read."""
    gc.collect()
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself, and those of other threads
            links.append(os.readlink(path))
    return len([link for link in links if "eventpoll" not in link and not link.startswith("/proc/")])


def assert_served(remote: RemoteEngine) -> None:
    for values in (SMALL, np.arange(20_000, dtype=np.int32)):
        response = ask(remote, numbers(values)).get()
        assert response.error is None, response.error
        assert (response.outputs[0].array == values).all()


def filled(size: int, value: int = 1) -> Array:
    return np.full(size // 4, value, np.int32)


class Served:
    """An engine that can be taken away and brought back."""

    def __init__(self, folder: Path, engine: Any) -> None:
        folder.mkdir()
        self.engine = engine
        self.folder = folder
        self.path = str(folder / "engine.sock")
        self._stack = ExitStack()
        self.server: EngineServer

    def begin(self) -> None:
        _, self.server = self._stack.enter_context(served(self.folder, self.engine))

    def end(self) -> None:
        self._stack.close()


@contextmanager
def pooled(
    folder: Path, engines: Sequence[Any], *, keeps_answers: bool = False, by_model: bool = False, ready: bool = True
) -> Iterator[tuple[EnginePool, list[Served]]]:
    """The pool of a front end, and the engines behind it."""
    those = [Served(folder / str(index), engine) for index, engine in enumerate(engines)]
    for each in those:
        each.begin()
    pool = EnginePool(
        [each.path for each in those],
        ThreadLink,
        SHARED,
        folder / "changes",
        keeps_answers=keeps_answers,
        by_model=by_model,
    )
    pool.start()
    try:
        if ready:
            until(pool.is_ready, "not connected")
        yield pool, those
    finally:
        pool.close()
        for each in those:
            each.end()


Pooled = tuple[EnginePool, list[Served]]
