"""Models that change in S3 and Google Cloud Storage while a server serves them: load requests and polling.

Source: docs/spec/repository.md sections 1.3, 1.6 and 1.10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import UNLOADED, factor_of, index, load, unload_and_wait
from tests.contract.repository.cloud_models import (
    CloudRepository,
    assert_serves,
    cloud_server,
    fetched,
    listings,
    reasons,
)
from tests.contract.repository.fault_proxy import FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.processes import engines_of
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

# Without auto-completion a missing configuration is noticed.
FULL = (
    'backend: "onnxruntime" max_batch_size: 8 '
    'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ] '
    'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]'
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Emulator]:
    with S3Emulator() as running:
        yield running


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsEmulator]:
    with GcsEmulator() as running:
        yield running


@dataclass
class Seen:
    """The requests of the storage behind `proxy` since the last call."""

    proxy: FaultProxy
    before: int = 0

    def fetched(self) -> Counter[str]:
        """The objects that were requested since the last call. There must have been one listing."""
        lines = self.proxy.requests[self.before :]
        self.before += len(lines)
        assert listings(lines) == 1, lines
        return fetched(lines)


def test_load_request_fetches_changed_objects_only(s3: S3Emulator, tmp_path: Path) -> None:
    repository = CloudRepository(s3, "asked", "models")
    repository.put_model("other", 9.0)
    repository.put_model("m", 2.0)
    repository.put("m/labels.txt", b"one\ntwo\n")
    with (
        FaultProxy(s3.endpoint) as proxy,
        cloud_server(tmp_path, "log", repository.uri(proxy.endpoint), "--model-control-mode=explicit") as server,
    ):
        seen = Seen(proxy)
        assert seen.fetched() == {}  # the start checks that the repository exists
        assert load(server, "m") == (200, "")
        assert seen.fetched() == {"m/config.pbtxt": 1, "m/1/model.onnx": 1, "m/labels.txt": 1}
        assert_serves(server, "m", 2.0)

        repository.put_version("m", 3.0)
        assert load(server, "m") == (200, "")
        assert seen.fetched() == {"m/1/model.onnx": 1}
        assert_serves(server, "m", 3.0)

        assert load(server, "m") == (200, "")
        assert seen.fetched() == {}

        assert load(server, "m", config='{"backend": "onnxruntime", "max_batch_size": 3}') == (200, "")
        assert seen.fetched() == {}
        assert server.json("GET", "/v2/models/m/config")["max_batch_size"] == 3
        assert_serves(server, "m", 3.0)

        repository.put("m/config.pbtxt", b'max_batch_size: 5 backend: "onnxruntime"')
        assert load(server, "m") == (200, "")
        assert seen.fetched() == {"m/config.pbtxt": 1}
        assert server.json("GET", "/v2/models/m/config")["max_batch_size"] == 5

        unload_and_wait(server, "m")
        assert server.request("POST", "/v2/models/m/infer", b"{}")[0] == 404
        seen.before = len(proxy.requests)  # the index lists the repository too
        assert load(server, "m") == (200, "")
        assert seen.fetched() == {}
        assert_serves(server, "m", 3.0)

        repository.delete("m/1/model.onnx")
        assert load(server, "m")[0] == 500
        assert "at least one version must be available" in reasons(server, "m")
        assert_serves(server, "m", 3.0)
        assert load(server, "none") == (500, "failed to load 'none', failed to poll from model repository")


# --- polling


@dataclass(frozen=True)
class Polling:
    """A server that polls a repository in S3, behind `proxy`, and one of Google's every second."""

    server: ServerProcess
    repositories: dict[str, CloudRepository]
    proxy: FaultProxy


@pytest.fixture(scope="module")
def polling(s3: S3Emulator, gcs: GcsEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Polling]:
    repositories = {"s3": CloudRepository(s3, "polled"), "gs": CloudRepository(gcs, "polled", "models")}
    for storage, repository in repositories.items():
        repository.put_model(f"first-{storage}", 1.0, config=FULL)
    with (
        FaultProxy(s3.endpoint) as proxy,
        cloud_server(
            tmp_path_factory.mktemp("polling"),
            "log",
            repositories["s3"].uri(proxy.endpoint),
            f"--model-repository={repositories['gs'].uri()}",
            "--model-control-mode=poll",
            "--repository-poll-secs=1",
            "--disable-auto-complete-config",
            STORAGE_EMULATOR_HOST=gcs.endpoint,
        ) as server,
    ):
        yield Polling(server, repositories, proxy)
        assert server.log_text().count("unexpected error") == 0


def serves(server: ServerProcess, name: str, factor: float) -> bool:
    """Whether the model serves with these weights."""
    return server.request("GET", f"/v2/models/{name}/ready")[0] == 200 and factor_of(server, name) == factor


@pytest.mark.parametrize("storage", ["s3", "gs"])
def test_polling_loads_new_models_and_unloads_removed_ones(polling: Polling, storage: str) -> None:
    server, repository, name = polling.server, polling.repositories[storage], f"grows-{storage}"
    repository.put_model(name, 2.0, config=FULL)
    until(lambda: serves(server, name, 2.0), "the new model does not serve")
    repository.put_version(name, 3.0, version=2)
    until(lambda: serves(server, name, 3.0), "the new version does not serve")
    assert_serves(server, name, 3.0, version=2)
    until(lambda: {"version": "1", **UNLOADED} in index(server, name), "the old version stays")
    repository.put_version(name, 4.0, version=2)
    until(lambda: serves(server, name, 4.0), "the changed object does not serve")
    for path in ("config.pbtxt", "1/model.onnx", "2/model.onnx"):
        repository.delete(f"{name}/{path}")
    until(lambda: server.request("GET", f"/v2/models/{name}/ready")[0] != 200, "the model stays")
    assert serves(server, f"first-{storage}", 1.0)


@pytest.mark.parametrize(("storage", "mode"), [("s3", "poll"), ("gcs", "explicit")])
def test_two_engines_fetch_every_object_once_and_change_together(
    storage: str, mode: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    repository = CloudRepository(request.getfixturevalue(storage), f"engines-{mode}", "models")
    repository.put_model("one", 2.0)
    repository.put_model("two", 3.0)
    options = ["--http-workers=2", "--engines=2", f"--model-control-mode={mode}"]
    options += ["--repository-poll-secs=1"] if mode == "poll" else ["--load-model=*"]
    with FaultProxy(repository.emulator.endpoint) as proxy:
        location = repository.uri(proxy.endpoint)
        with cloud_server(tmp_path, "log", location, *options, STORAGE_EMULATOR_HOST=proxy.endpoint) as server:
            assert len(engines_of(server)) == 2
            wanted = {f"{name}/{path}" for name in ("one", "two") for path in ("config.pbtxt", "1/model.onnx")}
            assert fetched(proxy.requests) == dict.fromkeys(wanted, 1)
            repository.put_version("one", 4.0)
            if mode == "explicit":
                assert load(server, "one") == (200, "")
            until(lambda: {factor_of(server, "one") for _ in range(20)} == {4.0}, server.log_text)
            assert fetched(proxy.requests) == {**dict.fromkeys(wanted, 1), "one/1/model.onnx": 2}
            assert {factor_of(server, "two") for _ in range(20)} == {3.0}
