"""Servers that fail in every way that an alert describes, and their metrics over time, as promtool reads series."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.contract.deploy.monitored_site import multi_model, repeated, status_of
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import picky, write_version

# A batch of this model waits for its delay, because its clients never fill it.
LATE = """
max_batch_size: 512
dynamic_batching { preferred_batch_size: 512 max_queue_delay_microseconds: 1500000 }
"""
# All but one of its waiting requests are refused.
NARROW = """
max_batch_size: 4
dynamic_batching {
  preferred_batch_size: 4 max_queue_delay_microseconds: 500000 default_queue_policy { max_queue_size: 1 }
}
"""
_CLIENTS = 130
_LIMIT_S = 30.0
_REFUSED_LOADS = 20
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

Page = Callable[[], bytes]


@contextlib.contextmanager
def failing_servers(folder: Path) -> Iterator[dict[str, Page]]:
    """The metrics pages of servers by the name of what they do:

    healthy   is ready and answers
    late      its requests wait long, many at once
    failing   its model fails, and refuses requests while others wait
    broken    a model does not load, another is loaded again and again
    idle      answers a few requests after its page was read for the first time
    dead      was killed
    thrashing is a multi-model container that is asked for a model without room, again and again
    """
    good = _repository(folder / "good", picky="")
    options: dict[str, tuple[Path, tuple[str, ...]]] = {
        "healthy": (good, ()),
        "late": (_repository(folder / "late", picky=LATE), ("--metrics-config=histogram_latencies=true",)),
        "failing": (_repository(folder / "failing", picky="", narrow=NARROW), ()),
        "broken": (_with_broken(folder / "broken"), ("--model-control-mode=explicit", "--load-model=*")),
        "idle": (good, ()),
        "dead": (good, ()),
    }
    servers = {
        name: ServerProcess(
            repository,
            folder / f"{name}.log",
            "--http-workers=0",
            "--exit-on-error=false",
            "--shutdown-grace-secs=0",
            *more,
            ready=name != "broken",
        )
        for name, (repository, more) in options.items()
    }
    with multi_model(folder / "many") as container, ExitStack() as running:
        with ThreadPoolExecutor(len(servers)) as pool:
            for _ in pool.map(running.enter_context, servers.values()):
                pass
        running.enter_context(repeated(lambda: _ask_healthy(servers["healthy"])))
        running.enter_context(repeated(lambda: _ask_failing(servers["failing"])))
        running.enter_context(repeated(lambda: _ask_broken(servers["broken"])))
        running.enter_context(repeated(lambda: _thrash(container, folder / "many")))
        running.enter_context(_many_clients(servers["late"]))
        servers["dead"].kill()
        pages = {name: _page(HOST, server.metrics_port) for name, server in servers.items()}
        yield {
            **pages,
            "idle": _asked_once(servers["idle"], pages["idle"]),
            "thrashing": _page(HOST, container.port),
        }


def scraped(pages: Mapping[str, Page], steps: int, interval_s: float) -> list[dict[str, str]]:
    """The series of all pages as promtool's `input_series`, one value a step. `release` is the name of the server."""
    series: dict[str, dict[int, str]] = defaultdict(dict)
    with ThreadPoolExecutor(len(pages)) as pool:
        for step in range(steps):
            began = time.monotonic()
            for name, page in zip(pages, pool.map(lambda page: page(), pages.values()), strict=True):
                target = f'namespace="n",release="{name}",instance="{name}",job="trident"'
                series[f"up{{{target}}}"][step] = str(int(bool(page)))
                for metric, labels, value in _SAMPLE.findall(page.decode()):
                    if value == "NaN" or metric == "flask_http_request_duration_seconds_bucket":  # unused, and many
                        continue
                    series[f"{metric}{{{labels}{',' if labels else ''}{target}}}"][step] = f"{float(value):.6f}"
            threading.Event().wait(max(0.0, began + interval_s - time.monotonic()))
    return [
        {"series": name, "values": " ".join(values.get(step, "_") for step in range(steps))}
        for name, values in series.items()
    ]


def _page(host: str, port: int) -> Page:
    """Reads a metrics page; it is empty if nobody answers."""

    def read() -> bytes:
        connection = http.client.HTTPConnection(host, port, timeout=_LIMIT_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/metrics")
            return connection.getresponse().read()
        return b""

    return read


def _asked_once(server: ServerProcess, page: Page) -> Page:
    asked: list[int] = []

    def read() -> bytes:
        content = page()
        if not asked:
            asked.extend(_ask(server, "picky", 1) for _ in range(10))
            assert set(asked) == {200}
        return content

    return read


def _repository(folder: Path, **configurations: str) -> Path:
    for name, configuration in configurations.items():
        write_version(picky(), folder, name, configuration)
    return folder


def _with_broken(folder: Path) -> Path:
    (folder / "broken" / "1").mkdir(parents=True)
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    return _repository(folder, again="")


def _body(index: int) -> bytes:
    return json.dumps({"inputs": [{"name": "INDEX", "datatype": "INT64", "shape": [1, 1], "data": [index]}]}).encode()


def _ask(server: ServerProcess, model: str, index: int) -> int:
    return status_of(server, "POST", f"/v2/models/{model}/infer", _body(index))


def _ask_healthy(server: ServerProcess) -> None:
    assert (status_of(server, "GET", "/v2/health/ready"), _ask(server, "picky", 1)) == (200, 200)


def _ask_failing(server: ServerProcess) -> None:
    """Four requests at once to the model that lets one wait, and two to another, one of which fails."""
    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(lambda _: _ask(server, "narrow", 1), range(4)))
    assert set(statuses) <= {200, 503}, statuses
    assert (_ask(server, "picky", 1), _ask(server, "picky", 99)) == (200, 500)


def _ask_broken(server: ServerProcess) -> None:
    """A probe, and a load of a model whose file has changed."""
    weights = server.repository / "again" / "1" / "model.onnx"
    weights.write_bytes(picky(4 + time.monotonic_ns() % 1000).SerializeToString())
    assert status_of(server, "GET", "/v2/health/ready") == 400
    assert status_of(server, "POST", "/v2/repository/models/again/load", b"{}") == 200


def _thrash(container: SageMakerContainer, folder: Path) -> None:
    """Ask for the model without room, on one connection and with more patience than the platform has."""
    body = json.dumps({"model_name": "large", "url": f"{folder}/models/large/model"}).encode()
    with contextlib.closing(http.client.HTTPConnection(HOST, container.port, timeout=_LIMIT_S)) as connection:
        for _ in range(_REFUSED_LOADS):
            connection.request("POST", "/models", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (507, True)


@contextlib.contextmanager
def _many_clients(server: ServerProcess) -> Iterator[None]:
    """Keep a request of each of many clients waiting."""
    with ExitStack() as opened:
        connections = [http.client.HTTPConnection(HOST, server.http_port, timeout=_LIMIT_S) for _ in range(_CLIENTS)]
        for connection in connections:
            opened.callback(connection.close)

        def ask_all() -> None:
            for connection in connections:
                connection.request("POST", "/v2/models/picky/infer", _body(1))
            answers = [connection.getresponse() for connection in connections]
            assert {(answer.status, bool(answer.read())) for answer in answers} == {(200, True)}

        with repeated(ask_all):
            yield
