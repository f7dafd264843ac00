"""Any connection is served or ended in time. Afterwards the server has all its processes, no more memory, threads and
files than before, and no traceback in its log.

The recorded connections are those of `tritonclient.grpc` and grpcio.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from tests.contract.grpc.grpc_requests import simple_message
from tests.contract.grpc.raw_connection import INFER
from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import Held, workers_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.fuzzing import bounded, examples
from tests.unit.app.worker.http2.raw_client import Frame, cut
from tests.unit.app.worker.http2.test_fuzz import changed
from tests.unit.core.grpc.any_messages import messages
from tests.waiting import until
from trident.app.worker.http2 import frames
from trident.app.worker.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
)
from trident.app.worker.http2.headers import encode_fields
from trident.core.grpc.status import Status

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
# The kinds of frames that a server sends.
SENT = (DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE)
# Connections until what the server remembers of clients and requests is full.
WARM_UP = 500
GROWTH_MB = 8
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.bin"))
LAST_STREAM = 1_000_001
STATUSES = {str(int(status)) for status in Status}


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("fuzz")
    set_hypothesis_home_dir(folder / "hypothesis")
    repository = link_models(folder / "models", "simple", "identity_fp32", "str_id")
    options = ("--shutdown-grace-secs=0", "--grpc-infer-response-compression-level=low")
    with ServerProcess(repository, folder / "log", *options) as running:
        workers = workers_of(running)
        damage_recorded(running, random.Random(-1), WARM_UP)
        before = Held.by(running)
        yield running
        assert workers_of(running) == workers, "a process was restarted"
        # A worker returns freed memory only when it is idle.
        until(lambda: Held.by(running).is_within(before, GROWTH_MB), lambda: f"{before}, then {Held.by(running)}")


@pytest.fixture(autouse=True)
def _serves_afterwards(server: ServerProcess) -> Iterator[None]:
    yield
    assert_still_serves(server)


@pytest.fixture
def log(server: ServerProcess) -> Iterator[Callable[[], str]]:
    """What the server has logged since the last time."""
    with server.log.open(errors="replace") as file:
        file.seek(0, 2)
        yield file.read


def last_call() -> bytes:
    """A good call on a stream of its own, whatever came before it."""
    message = simple_message().SerializeToString()
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", INFER.encode()),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
    )
    return b"".join(
        (
            frames.window_update(0, 1 << 20),
            frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20}),
            frame(HEADERS, END_HEADERS, LAST_STREAM, encode_fields(fields)),
            frame(DATA, END_STREAM, LAST_STREAM, b"\0" + len(message).to_bytes(4, "big") + message),
        )
    )


def converse(server: ServerProcess, content: bytes) -> list[Frame]:
    """Send whole frames and a last call, and read until that is answered or the connection ends. All frames."""
    found: list[Frame] = []
    rest = b""
    client = socket.create_connection((HOST, server.grpc_port), timeout=PATIENCE_S)
    with client, contextlib.suppress(ConnectionError):
        client.sendall(content + last_call())
        while not any(each.stream == LAST_STREAM and each.flags & END_STREAM for each in found):
            received = client.recv(65536)
            if not received:
                break
            more, rest = cut(rest + received)
            found += more
    return found


def check(found: Sequence[Frame]) -> None:
    """What the server has sent is HTTP/2 and gRPC, and the last call succeeded unless the connection ended."""
    decoder = hpack.Decoder()
    goaways = [each for each in found if each.kind == GOAWAY]
    statuses: dict[int, str] = {}
    for each in found:
        assert each.kind in SENT
        if each.kind == HEADERS:
            fields = dict(decoder.decode(each.content, raw=False))
            if each.flags & END_STREAM and "grpc-status" in fields:
                assert each.stream not in statuses
                assert fields["grpc-status"] in STATUSES, fields
                statuses[each.stream] = fields["grpc-status"]
    for each in goaways:
        assert each.content[8:], "a connection ends without a reason"
    assert goaways or statuses.get(LAST_STREAM) == "0" or not found, (found[-3:], statuses)


def damage_recorded(server: ServerProcess, random: random.Random, times: int) -> None:
    """Send recorded connections with a few faults. Each must end."""
    for _ in range(times):
        content = changed(random.choice(RECORDED).read_bytes(), random)
        client = socket.create_connection((HOST, server.grpc_port), timeout=PATIENCE_S)
        with client, contextlib.suppress(ConnectionError):
            client.sendall(content)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass


@pytest.mark.parametrize("seed", range(4))
def test_recorded_connections_with_damaged_bytes(server: ServerProcess, log: Callable[[], str], seed: int) -> None:
    damage_recorded(server, random.Random(seed), examples(300))
    assert "Traceback" not in log()


# --- connections that nobody recorded

SERVICE = "/inference.GRPCInferenceService/"
METHODS = ["ModelMetadata", "ModelConfig", "RepositoryIndex", "ModelStatistics", "ServerLive", "Nope"]
PATHS = st.one_of(
    st.just(INFER),
    st.just(SERVICE + "ModelStreamInfer"),
    st.sampled_from(METHODS).map(lambda name: SERVICE + name),
    st.sampled_from(["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/", "odd"]),
    st.just("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
)
NAMES = b"grpc-timeout grpc-encoding grpc-accept-encoding content-type content-length te x-mine x-bin triton_grpc_error"
VALUES = b"1S 1n 99999999H gzip deflate identity true application/grpc 5 -1 trailers \xff"
METADATA = st.lists(
    st.tuples(st.sampled_from(NAMES.split()), st.sampled_from([*VALUES.split(), b"", b"x" * 300])), max_size=3
)
MESSAGES = st.one_of(
    st.just(simple_message().SerializeToString()),
    messages.map(lambda message: message.SerializeToString()),
    st.binary(max_size=30),
    st.just(b""),
)
IDS = st.sampled_from([1, 1, 3, 3, 5, 7, 9, 2, 0, 2**31 - 1])
NUMBERS = st.sampled_from([0, 1, 100, 65535, 2**31 - 1])


def header_frames(id: int, path: str, metadata: list[tuple[bytes, bytes]], cut: int, *, ends: bool) -> bytes:
    """The header section of a call, in one frame or in two."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"a")]
    if all(name != b"content-type" for name, _ in metadata):
        fields.append((b"content-type", b"application/grpc"))
    block = encode_fields((*fields, *metadata))
    end = END_STREAM if ends else 0
    if cut == 0:
        return frame(HEADERS, END_HEADERS | end, id, block)
    return frame(HEADERS, end, id, block[:cut]) + frame(CONTINUATION, END_HEADERS, id, block[cut:])


def data_frames(id: int, message: bytes, flag: int, excess: int, cut: int, *, ends: bool, padded: bool) -> bytes:
    """A message, whose prefix tells `excess` bytes more than it has, in one frame or in two."""
    content = bytes((flag,)) + (len(message) + excess).to_bytes(4, "big") + message
    end = END_STREAM if ends else 0
    if padded:
        return frame(DATA, PADDED | end, id, b"\3" + content + bytes(3))
    return (frame(DATA, 0, id, content[:cut]) if cut else b"") + frame(DATA, end, id, content[cut:])


CALLS = st.builds(
    lambda id, path, metadata, cut, content, ends: (
        header_frames(id, path, metadata, cut, ends=False)
        + b"".join([data_frames(id, one, 0, 0, cut, ends=False, padded=False) for one in content])
        + frame(DATA, END_STREAM if ends else 0, id)
    ),
    IDS,
    PATHS,
    METADATA,
    st.sampled_from([0, 0, 0, 1, 20]),
    st.lists(MESSAGES, max_size=3),
    st.booleans(),
)
ANY_FRAMES = st.one_of(
    CALLS,
    CALLS,
    st.builds(header_frames, IDS, PATHS, METADATA, st.sampled_from([0, 0, 1, 20]), ends=st.booleans()),
    st.builds(
        data_frames,
        IDS,
        MESSAGES,
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from([0, 0, 0, 1, 10**6, 2**31]),
        st.sampled_from([0, 3, 5, 9]),
        ends=st.booleans(),
        padded=st.booleans(),
    ),
    st.builds(frames.rst_stream, IDS, st.sampled_from(list(ErrorCode))),
    st.builds(frames.window_update, IDS, NUMBERS),
    st.builds(frames.settings, st.dictionaries(st.integers(0, 8), NUMBERS, max_size=3)),
    st.builds(lambda content: frame(PING, 0, 0, content), st.binary(min_size=8, max_size=8)),
    st.builds(lambda id, content: frame(PRIORITY, 0, id, content), IDS, st.binary(max_size=6)),
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), IDS, st.binary(max_size=40)),
)


@bounded(500)
@given(parts=st.lists(ANY_FRAMES, max_size=10))
def test_any_frames(server: ServerProcess, log: Callable[[], str], parts: list[bytes]) -> None:
    check(converse(server, frames.PREFACE + frames.settings({}) + b"".join(parts)))
    assert "Traceback" not in log()
