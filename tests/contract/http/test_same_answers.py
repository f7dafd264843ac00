"""A server in one process and a server with front ends give the same answers, byte for byte.

Both are sent the exchanges recorded with a real Triton, in their order, and requests that fail in the engine. Tests of
bad input therefore run in one process only.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from http.client import HTTPMessage
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.contract.lifecycle.changing_models import INDEX, base64_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import GOLDEN_MODELS, PATH, good_body, good_document
from tests.unit.onnx_models import add_sub, write_version
from tests.waiting import until

pytestmark = pytest.mark.slow

RECORDED = GOLDEN_MODELS.parent / "exchanges.jsonl"
NOT_LOADED = ("broken", "badcfg")
FULL = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100000 preferred_batch_size: 8 %s }"
# The request waits for a second one until its timeout.
NEVER = FULL % "default_queue_policy { default_timeout_microseconds: 1000 }"
LOAD = "/v2/repository/models/simple/load"


class Request(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    metrics: bool = False


class Both(NamedTuple):
    one: ServerProcess
    several: ServerProcess

    def ask(self, request: Request) -> tuple[Any, Any]:
        """The two answers: status, headers except the date, body."""
        return _ask(self.one, request), _ask(self.several, request)

    def wait_for_unloads(self) -> None:
        """Wait until no model unloads. An unload is answered when it begins, and one server may finish it sooner."""
        for server in self:
            until(partial(_is_settled, server), "an unload does not end")

    def wait_for_states(self) -> None:
        """Wait until every front end says of the failed loads what the one process says."""
        ready = Request("GET", "/v2/health/ready")
        for _ in range(8):  # connections, to one front end or the other
            until(lambda: len(set(map(repr, self.ask(ready)))) == 1, "the front ends do not learn of a failed load")


def _ask(server: ServerProcess, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
    port = server.metrics_port if request.metrics else server.http_port
    status, headers, answer = server.request(
        request.method, request.path, request.body or None, dict(request.headers), port=port
    )
    return status, sorted(_without_date(headers)), answer


def _is_settled(server: ServerProcess) -> bool:
    return "UNLOADING" not in str(server.json("POST", INDEX))


def _without_date(headers: HTTPMessage) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in headers.items() if name != "Date")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("both")
    repository = folder / "models"
    repository.mkdir()
    for model in GOLDEN_MODELS.iterdir():
        (repository / model.name).symlink_to(model)
    write_version(add_sub(), repository, "never", NEVER)
    loaded = [f"--load-model={path.name}" for path in repository.iterdir() if path.name not in NOT_LOADED]
    options = ("--model-control-mode=explicit", *loaded, "--shutdown-grace-secs=0", "--log-verbose=0")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(repository, folder / f"log{number}", *options, f"--http-workers={number}")
            )
            for number in (0, 2)
        ]
        yield Both(*servers)


def recorded() -> list[Request]:
    exchanges = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [
        Request(
            each["method"],
            each["path"],
            base64.b64decode(each["req_body_b64"]),
            each["req_headers"],
            metrics=each["port"] == 2,
        )
        for each in exchanges
    ]


def document(**fields: Any) -> bytes:
    return json.dumps(good_document() | fields).encode()


def infer(body: bytes, path: str = PATH, **headers: str) -> Request:
    return Request("POST", path, body, headers)


def load(**parameters: Any) -> Request:
    return Request("POST", LOAD, json.dumps({"parameters": parameters}).encode())


REFUSED = [
    infer(document(outputs=[{"name": "OUTPUT7"}])),
    infer(document(inputs=[{"name": "INPUT7", "datatype": "INT32", "shape": [1, 16], "data": [0] * 16}])),
    infer(document(id="7", inputs=[])),
    infer(document(id="é\u4e16\ud83d\ude00", outputs=[{"name": "é"}])),
    infer(good_body().replace(b"INPUT0", b"INP\xffUT0")),
    infer(good_body().replace(b"INPUT0", b"INP\\u0000UT0")),
    infer(document(parameters={"priority": 1 << 64})),
    infer(document(parameters={"timeout": -1})),
    infer(document(parameters={"sequence_id": "s", "sequence_start": True})),
    infer(
        document(parameters={"own": "text", "number": 1 << 63, "fraction": 1e300, "truth": True, "\u00e9": "\u00e9"})
    ),
    infer(good_body().replace(b'{"inputs"', b'{"parameters": {"own": "\xff"}, "inputs"')),
    infer(good_body(), "/v2/models/never/infer"),
    infer(good_body(), "/v2/models/nothing/infer"),
    infer(good_body(), "/v2/models/simple/versions/7/infer"),
    infer(good_body(), "/v2/models/badcfg/infer"),
    Request("GET", "/v2/models/badcfg/ready"),
    Request("GET", "/v2/models/badcfg/config"),
    Request("GET", "/v2/models/badcfg/stats"),
    Request("GET", "/v2/models/%ff/ready"),
    Request("POST", "/v2/repository/models/badcfg/load"),
    Request("POST", "/v2/repository/models/nothing/load"),
    Request("POST", "/v2/repository/models/nothing/unload"),
    Request("POST", "/v2/repository/models/broken/load"),
    load(config="{"),
    load(config='{"max_batch_size": -1}'),
    load(config='{"backend": "onnxruntime", "input": [{"name": "OTHER", "data_type": "TYPE_FP32", "dims": [4]}]}'),
    load(config=7),
    load(other="text"),
    load(other=[1]),
    load(**{"file:../x": base64_of(b"x"), "config": '{"backend": "onnxruntime"}'}),
    Request("POST", "/v2/repository/index", b'{"ready": true}'),
    Request("POST", "/v2/repository/index", b'{"ready": 7}'),
    Request("GET", "/v2/health/ready"),
    Request("GET", "/v2/health/live"),
    Request("GET", "/v2"),
]


def test_recorded_exchanges_are_answered_alike(both: Both) -> None:
    exchanges = recorded()
    assert len(exchanges) > 100
    for request in exchanges:
        if request.path != "/metrics":
            one, several = both.ask(request)
            assert one == several, request
            if request.path.endswith("/unload"):
                both.wait_for_unloads()


def test_refusals_are_alike(both: Both) -> None:
    hints = 0
    for request in REFUSED:
        if request.path == "/v2/health/ready":
            both.wait_for_states()
        one, several = both.ask(request)
        assert one == several, request
        assert b"unexpected error in the server" not in one[2], one
        hints += any("Hint" in name for name, _ in one[1])
    assert hints > 3  # hints are compared too


def test_statistics_have_the_same_counts(both: Both) -> None:
    one, several = (without_times(json.loads(body)) for _, _, body in both.ask(Request("GET", "/v2/models/stats")))
    assert len(one["model_stats"]) > 10
    assert one == several


def without_times(value: Any) -> Any:
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in ("ns", "last_inference")}
    return value


def test_metrics_have_the_same_names_labels_and_counts(both: Both) -> None:
    """Except the creation times of counters, which the metrics library has in one process only."""
    pages = [
        {
            name: value
            for name, value in samples_of(server)
            if not re.match(r"\w+_created\{|flask_http_request_exceptions_total|nv_(cpu|energy|gpu)", name)
        }
        for server in both
    ]
    counted = r"nv_inference_(request|count|exec_count|pending)|\w+_(count|total)\{"
    # The readiness probes during the start vary, and do not go through Flask before it is imported. So do the questions
    # whether an unload has ended.
    varying = re.compile(r'health/ready|repository/index|flask_http_request_total\{method="POST",status="200"\}')
    pages = [{n: v for n, v in page.items() if not varying.search(n)} for page in pages]
    assert pages[0].keys() == pages[1].keys()
    counts = [{n: v for n, v in page.items() if re.match(counted, n) and "duration_us" not in n} for page in pages]
    with_probes = re.compile(r'status="400"|flask_http_request_total\{method="GET",status="200"\}')
    counts = [{n: v for n, v in page.items() if not with_probes.search(n)} for page in counts]
    assert len(counts[0]) > 50
    assert counts[0] == counts[1]


def samples_of(server: ServerProcess) -> Iterator[tuple[str, str]]:
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name, value
