"""Servers that have every metric, and requests of all kinds to them, for tests of the monitoring."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from docs.lists import MODEL, families_of
from tests.contract.repository.cloud_models import cloud_server
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.unit.onnx_models import picky, write_version
from tests.waiting import until
from trident.core.http.admin import PROMETHEUS
from trident.core.observability.metrics.families import render

_BUCKET = "models"
_DIGIT = (ROOT / "deploy" / "digits" / "7.json").read_bytes()
_TOO_LARGE_BYTES = 1 << 40  # a hole in a file, which takes no room
_PAUSE_S = 0.05
_PLAIN = ("--exit-on-error=false", "--metrics-config=histogram_latencies=true")


@contextlib.contextmanager
def monitored_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Servers under load, the addresses of their pages by the names that prometheus.yml has for them.

    `plain` has its models from S3; one of them cannot be loaded, so that it is never ready. `sagemaker-mme` loads,
    unloads, and is asked for a model that does not fit. `vertex` is no server but the page of one with a GPU.
    """
    with (
        S3Emulator() as emulator,
        cloud_server(folder, "plain.log", _fill(emulator, folder), *_PLAIN, ready=False) as plain,
        multi_model(folder) as container,
        _gpu_page() as gpu_address,
    ):
        until(lambda: _is_ready(plain, "digits") and _is_ready(plain, "picky"), plain.log_text)
        with repeated(lambda: _ask_plain(plain)), repeated(lambda: _ask_container(container, folder)):
            yield {
                "plain": f"{HOST}:{plain.metrics_port}",
                "sagemaker-mme": f"{HOST}:{container.port}",
                "vertex": gpu_address,
            }


def _fill(emulator: S3Emulator, folder: Path) -> str:
    repository = folder / "repository"
    shutil.copytree(ROOT / "deploy" / "models", repository)
    write_version(picky(), repository, "picky")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    for path in repository.rglob("*"):
        if path.is_file():
            emulator.put(_BUCKET, str(path.relative_to(repository)), path.read_bytes())
    return f"s3://{emulator.address}/{_BUCKET}"


def multi_model(folder: Path) -> SageMakerContainer:
    root = folder / "models"
    shutil.copytree(ROOT / "deploy" / "models" / "digits", root / "small" / "model")
    shutil.copytree(ROOT / "deploy" / "models" / "digits", root / "large" / "model")
    with (root / "large" / "model" / "1" / "model.onnx").open("ab") as weights:
        weights.truncate(_TOO_LARGE_BYTES)
    return SageMakerContainer(
        folder / "container.log", SAGEMAKER_MULTI_MODEL="true", TRIDENT_SAGEMAKER_MODELS_ROOT=str(root)
    )


@contextlib.contextmanager
def _gpu_page() -> Iterator[str]:
    """A page of GPU metrics, which the server's code makes from invented readings."""
    page = render(families_of(replace(MODEL, gpu_uuid="GPU-0")))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", PROMETHEUS)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a scrape that was given up
                self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((HOST, 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def repeated(requests: Callable[[], None]) -> Iterator[None]:
    """Call a function in a loop on a thread. Its exception is raised at the end."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.wait(_PAUSE_S):
                requests()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def _is_ready(server: ServerProcess, model: str) -> bool:
    return server.process.poll() is None and status_of(server, "GET", f"/v2/models/{model}/ready") == 200


def status_of(server: ServerProcess, method: str, path: str, body: bytes | None = None) -> int:
    try:
        return server.request(method, path, body)[0]
    except OSError:
        return 0


def _ask_plain(server: ServerProcess) -> None:
    """Send requests that are answered, fail in the model, and are refused."""
    index = {"name": "INDEX", "datatype": "INT64", "shape": [1, 1]}
    good, bad = (json.dumps({"inputs": [{**index, "data": [value]}]}).encode() for value in (1, 99))
    expected = {
        ("POST", "/v2/models/digits/infer", _DIGIT): 200,
        ("POST", "/v2/models/picky/infer", good): 200,
        ("POST", "/v2/models/picky/infer", bad): 500,
        ("POST", "/v2/models/digits/infer", b"{"): 400,
        ("GET", "/v2/health/ready", None): 400,
        ("POST", "/v2/repository/index", None): 200,
    }
    found = {key: status_of(server, *key) for key in expected}
    assert found == expected, server.log_text()[-4000:]


def _ask_container(container: SageMakerContainer, folder: Path) -> None:
    """Load, invoke and unload models; one load is repeated, one finds no room, and one finds no model."""
    root = folder / "models"
    statuses = [
        container.ping_status(),
        container.load("small", f"{root}/small/model").status,
        container.load("small", f"{root}/small/model").status,
        container.load("large", f"{root}/large/model").status,
        container.load("none", f"{root}/none/model").status,
        container.ask("POST", "/models/small/invoke", _DIGIT, Content_Type="application/json").status,
        container.ask("DELETE", "/models/small").status,
    ]
    assert statuses == [200, 200, 409, 507, 400, 200, 200], statuses
