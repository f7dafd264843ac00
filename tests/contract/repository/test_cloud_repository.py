"""Serving from S3 and Google Cloud Storage: the downloads of a start, a second start and an interrupted one, faults of
the storage, and models that change there.

The storages are `moto_server` and `gcp-storage-emulator`. Source: docs/spec/repository.md
sections 1.2 (version policy), 1.3 (duplicate names), 1.6 and 1.10.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import BATCHED, add_scaled, factor_of, heavy, index, load, unload_and_wait
from tests.contract.repository.azurite import connection_to
from tests.contract.repository.cloud_models import (
    KEYS,
    CloudRepository,
    assert_serves,
    cloud_server,
    fetched,
    listings,
    readiness,
    reasons,
    repository_metric,
)
from tests.contract.repository.fake_storage import Drip, FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.processes import engines_of
from tests.contract.servers.server import ServerProcess, environment_without
from tests.project import ROOT
from tests.waiting import until
from trident.core.repository.sources import NOT_UNIQUE

pytestmark = pytest.mark.slow

MIB = 1 << 20
HELD_AT = 2 * MIB + 1000  # progress is reported in pieces of 1 MiB


def server_of(
    repository: CloudRepository, proxy: FaultProxy, folder: Path, log: str, *options: str, ready: bool = True
) -> ServerProcess:
    """A server of `repository` behind `proxy`."""
    emulators = {
        "STORAGE_EMULATOR_HOST": proxy.endpoint,
        "AZURE_STORAGE_CONNECTION_STRING": connection_to(proxy.endpoint),
    }
    return cloud_server(folder, log, repository.uri(proxy.endpoint), *options, ready=ready, **emulators)


@pytest.mark.parametrize("storage", ["s3", "gcs"])
def test_first_start_downloads_served_models_and_second_start_nothing(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    repository = CloudRepository(request.getfixturevalue(storage), "cold", "models")
    repository.put_model("last", 2.0, 3.0)
    weights = heavy(4.0, 4).SerializeToString()
    repository.put("last/3/model.onnx", weights)
    repository.put_model(
        "some", 5.0, 6.0, 7.0, config=f"{BATCHED} version_policy {{ specific {{ versions: [1, 3] }} }}"
    )
    wanted = {"last/config.pbtxt", "last/3/model.onnx", "some/config.pbtxt", "some/1/model.onnx", "some/3/model.onnx"}
    with FaultProxy(repository.emulator.endpoint) as proxy:
        drip = Drip(after=HELD_AT)
        # Requests to Google's storage quote the name of the object.
        proxy.inject(drip, where="last/3/" if storage == "s3" else "last%2F3%2F")
        with server_of(repository, proxy, tmp_path, "first", ready=False) as server:
            _assert_held_start_is_seen(server, len(weights))
            drip.release()
            server.wait_until_ready()
            assert listings(proxy.requests) == 1
            assert fetched(proxy.requests) == dict.fromkeys(wanted, 1)
            assert_serves(server, "last", 4.0)
            assert_serves(server, "some", 5.0, version=1)
            assert_serves(server, "some", 7.0, version=3)
            assert [entry["version"] for entry in index(server, "some")] == ["1", "3"]
            assert repository_metric(server, "downloaded_objects_total") == len(wanted)
            assert len(weights) < repository_metric(server, "downloaded_bytes_total") < len(weights) + 4000
            assert repository_metric(server, "download_pending_bytes") == 0
            until(lambda: "downloaded model 'last' version 3: 1 object, 4.2 MB in " in server.log_text())
        seen = len(proxy.requests)
        with server_of(repository, proxy, tmp_path, "second") as server:
            assert len(proxy.requests) - seen == listings(proxy.requests[seen:]) == 1
            assert_serves(server, "last", 4.0)
            assert_serves(server, "some", 5.0, version=1)
            assert repository_metric(server, "downloaded_objects_total") == 0
            assert repository_metric(server, "cache_hits_total") >= len(wanted)
            assert "downloaded model" not in server.log_text()


@pytest.mark.parametrize("storage", ["s3", "gcs", "azurite"])
def test_models_on_demand_are_downloaded_on_first_request(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    repository = CloudRepository(request.getfixturevalue(storage), "demanded", "models")
    for name, factor in (("a", 2.0), ("b", 3.0)):
        repository.put_model(name, factor)
    configs = {"a/config.pbtxt": 1, "b/config.pbtxt": 1}
    with (
        FaultProxy(repository.emulator.endpoint) as proxy,
        server_of(repository, proxy, tmp_path, "demand", "--model-control-mode=demand") as server,
    ):
        assert fetched(proxy.requests) == configs
        assert listings(proxy.requests) == 1
        for _ in range(2):
            assert_serves(server, "b", 3.0)
            assert fetched(proxy.requests) == {**configs, "b/1/model.onnx": 1}
            assert server.request("POST", "/v2/repository/models/b/unload", b"{}")[0] == 200
            until(lambda: all(entry["state"] == "UNAVAILABLE" for entry in server.json("POST", "/v2/repository/index")))


def test_model_files_are_evicted_from_disk_in_lru_order(s3: S3Emulator, tmp_path: Path) -> None:
    repository = CloudRepository(s3, "in-turn", "models")
    weights = {name: heavy(factor, 1).SerializeToString() for name, factor in (("a", 2.0), ("b", 3.0), ("c", 4.0))}
    for name, content in weights.items():
        repository.put(f"{name}/config.pbtxt", BATCHED.encode())
        repository.put(f"{name}/1/model.onnx", content)
    room = f"--model-cache-bytes={int(2.5 * len(weights['a']))}"
    with (
        FaultProxy(repository.emulator.endpoint) as proxy,
        server_of(repository, proxy, tmp_path, "in-turn", "--model-control-mode=demand", room) as server,
    ):

        def use(name: str, factor: float) -> None:
            assert_serves(server, name, factor)
            unload_and_wait(server, name)

        for name, factor in (("a", 2.0), ("b", 3.0), ("a", 2.0), ("c", 4.0), ("a", 2.0), ("c", 4.0), ("b", 3.0)):
            use(name, factor)
        found = fetched(proxy.requests)
        assert {name: found[f"{name}/1/model.onnx"] for name in weights} == {"a": 1, "b": 2, "c": 1}
        # What serves is spared, although it was used longest ago.
        assert_serves(server, "c", 4.0)
        use("b", 3.0)
        use("a", 2.0)
        unload_and_wait(server, "c")
        use("c", 4.0)
        found = fetched(proxy.requests)
        assert {name: found[f"{name}/1/model.onnx"] for name in weights} == {"a": 2, "b": 2, "c": 1}


def _assert_held_start_is_seen(server: ServerProcess, size: int) -> None:
    """One of two models must be loaded while the other waits for the rest of an object of `size` bytes."""

    def held() -> bool:
        said = readiness(server)
        return said.get("loaded") == 1 and said.get("download", {}).get("bytes_done", 0) >= 2 * MIB

    until(held, f"no download is seen, but {readiness(server)}")
    said = readiness(server)
    assert (said["phase"], said["model"], said["total"]) == ("loading", "last", 2)
    download = said["download"]
    assert download["bytes_done"] < size <= download["bytes_total"]
    assert download["objects_done"] < download["objects_total"]
    assert download["seconds"] > 0
    assert size - HELD_AT <= repository_metric(server, "download_pending_bytes") < size
    assert server.request("GET", "/v2/health/live")[0] == 200


def test_validate_examines_a_cloud_repository_and_fills_the_cache_of_the_server(s3: S3Emulator, tmp_path: Path) -> None:
    repository = CloudRepository(s3, "examined", "models")
    repository.put_model("good", 2.0, 3.0)
    repository.put_model("bad", 2.0, config="max_batch_sise: 3")
    with FaultProxy(repository.emulator.endpoint) as proxy:
        uri = repository.uri(proxy.endpoint)
        command = [
            sys.executable,
            "-m",
            "trident.app",
            "validate",
            uri,
            f"--model-cache-directory={tmp_path / 'cache'}",
        ]
        variables = {**environment_without("AWS_", "GOOGLE_", "TRIDENT_", "TRITON_"), **KEYS}
        variables |= {"STORAGE_EMULATOR_HOST": proxy.endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
        ended = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1, ended.stderr
        assert "did you mean 'max_batch_size'?" in ended.stdout
        assert ended.stdout.endswith("1 problem, in 1 of 2 models\n")
        assert set(fetched(proxy.requests)) == {"good/config.pbtxt", "good/2/model.onnx", "bad/config.pbtxt"}
        repository.delete("bad/config.pbtxt")
        proxy.requests.clear()
        with server_of(repository, proxy, tmp_path, "log") as server:
            assert_serves(server, "good", 3.0)
        assert set(fetched(proxy.requests)) == {"bad/1/model.onnx"}


# Keys that would lead out of the cache, or over one another, if they were used as paths.
HOSTILE = {
    "upwards": ("1/model.onnx", "1/" + "../" * 9 + "outside"),
    "absolute": ("1/model.onnx", "/1/outside"),
    "both": ("1/model.onnx", "1/model.onnx/outside"),
    "folder": ("1/model.onnx", "1/./outside"),
}
BECAUSE = {
    "upwards": "has the name '..'",
    "absolute": "has an empty name",
    "both": "'1/model.onnx' is both a file and the folder of '1/model.onnx/outside'",
    "folder": "has the name '.'",
}


def test_all_kinds_of_repositories_serve_together_and_names_stay_inside(
    s3: S3Emulator, gcs: GcsEmulator, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    add_scaled(local, "here", 2.0)
    add_scaled(local, "twice", 2.0)
    below = CloudRepository(s3, "mixed", "some/models")
    below.put_model("below", 3.0)
    below.put_model("twice", 3.0)
    root = CloudRepository(s3, "at-root")
    root.put_model("root", 4.0)
    google = CloudRepository(gcs, "mixed", "models")
    google.put_model("google", 5.0)
    for name, paths in HOSTILE.items():
        for path in paths:
            below.put(f"{name}/{path}", b"not a model")
    below.put("../1/model.onnx", b"not a model")
    uris = (below.uri().replace("/mixed/", "//mixed//") + "/", root.uri(s3.address), google.uri())
    options = [f"--model-repository={uri}" for uri in uris]
    options += ["--exit-on-error=false", "--strict-readiness=false"]
    with cloud_server(tmp_path, "log", local, *options, STORAGE_EMULATOR_HOST=gcs.endpoint) as server:
        for factor, name in enumerate(("here", "below", "root", "google"), 2):
            assert_serves(server, name, float(factor))
        assert index(server, "twice") == [{"state": "UNAVAILABLE", "reason": NOT_UNIQUE}]
        for name, because in BECAUSE.items():
            assert because in reasons(server, name)
        assert server.log_text().count(f"ignore model '..' in s3://{s3.address}/mixed/some/models: ") == 1
        assert list(tmp_path.rglob("*outside*")) == []
        assert {path.name for path in tmp_path.iterdir()} == {"local", "cache", "home", "log"}
        assert not any(path.is_symlink() for path in (tmp_path / "cache").rglob("*"))


def test_next_start_continues_an_interrupted_download(s3: S3Emulator, tmp_path: Path) -> None:
    """Complete objects are not fetched again."""
    repository = CloudRepository(s3, "interrupted", "models")
    repository.put_model("large", 2.0)
    weights = heavy(2.0, 20).SerializeToString()
    repository.put("large/1/model.onnx", weights)
    with FaultProxy(s3.endpoint) as proxy:

        def server(log: str, *, ready: bool = False) -> ServerProcess:
            return cloud_server(tmp_path, log, repository.uri(proxy.endpoint), ready=ready)

        for how in ("kill", "terminate"):
            drip = Drip(after=1000)
            proxy.inject(drip, where="large/1/model.onnx")
            with server(how) as running:
                until(drip.paused.is_set, "nothing is fetched")
                until(lambda: "download" in readiness(running), "no download is seen")
                until(lambda: list((tmp_path / "cache" / "blobs").iterdir()), "no object is complete")
                running.kill() if how == "kill" else running.process.terminate()
                running.process.wait(60.0)
            drip.release()
            assert "successfully loaded" not in running.log_text()

        with server("served", ready=True) as running:
            assert_serves(running, "large", 2.0)
            assert repository_metric(running, "downloaded_bytes_total") == len(weights)
            assert repository_metric(running, "downloaded_objects_total") == 1
        assert fetched(proxy.requests)["large/config.pbtxt"] == 1
        assert not list((tmp_path / "cache" / "parts").glob("*.part"))


# --- models that change while a server serves them


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
        assert load(server, "m")[0] == 400
        assert "at least one version must be available" in reasons(server, "m")
        assert_serves(server, "m", 3.0)
        assert load(server, "none") == (500, "failed to load 'none', failed to poll from model repository")


# --- polling


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
