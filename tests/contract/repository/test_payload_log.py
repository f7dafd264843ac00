"""`--payload-log` to object stores: files at the stop of the server, and a store that is down.

The storages are `moto_server`, `gcp-storage-emulator` and Azurite. Source: docs/payload-log.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.repository.azurite import Azurite
from tests.contract.repository.cloud_models import KEYS, cloud_server
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import PATH, good_document, link_models
from trident.core.repository.cloud_sources import open_store
from trident.core.repository.location import parse_location

pytestmark = pytest.mark.slow


def server_of(folder: Path, target: str, *options: str, **variables: str) -> ServerProcess:
    models = link_models(folder / "models", "simple")
    return cloud_server(folder, "log", models, f"--payload-log={target}", *options, **variables)


def s3_target(s3: S3Emulator) -> tuple[str, dict[str, str]]:
    s3.make_bucket("payloads")
    return f"s3://{s3.address}/payloads/logs", KEYS


def gcs_target(gcs: GcsEmulator) -> tuple[str, dict[str, str]]:
    gcs.put("payloads", "other", b"x")
    return "gs://payloads/logs", {"STORAGE_EMULATOR_HOST": gcs.endpoint}


def azure_target(azurite: Azurite) -> tuple[str, dict[str, str]]:
    azurite.put("payloads", "other", b"x")
    return "as://testaccount/payloads/logs", {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string}


@pytest.mark.parametrize(("storage", "target_of"), [("s3", s3_target), ("gcs", gcs_target), ("azurite", azure_target)])
def test_each_process_has_stored_its_file_when_the_server_has_stopped(
    storage: str,
    target_of: Callable[..., tuple[str, dict[str, str]]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, variables = target_of(request.getfixturevalue(storage))
    with server_of(tmp_path, target, "--http-workers=2", "--engines=2", **variables) as server:
        for number in range(8):
            server.json("POST", PATH, {"id": str(number), **good_document(number)})
        assert server.stop() == 0
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = open_store(parse_location(target), None)
    files = {each.key: b"".join(store.read(each, 0, each.size)) for each in store.list()}
    assert len(files) == 2
    assert all(name.endswith(".jsonl") and "/" not in name for name in files)
    found = {
        line["request"]["id"]: line for content in files.values() for line in map(json.loads, content.splitlines())
    }
    assert sorted(found) == [str(number) for number in range(8)]
    for number, line in found.items():
        assert line["request"]["inputs"] == good_document(int(number))["inputs"]
        assert line["responses"][0]["outputs"][0]["data"] == [int(number) + each + 3 for each in range(16)]


def test_unreachable_store_delays_no_answer_and_is_logged(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    target = f"s3://{HOST}:{port}/payloads"
    with server_of(tmp_path, target, "--http-workers=0", "--exit-timeout-secs=1", **KEYS) as server:
        server.json("POST", PATH, good_document())
        assert server.stop() == 0
        assert "the payload log has ended without" in server.log_text()


def test_a_refused_file_names_the_bucket(s3: S3Emulator, tmp_path: Path) -> None:
    target = f"s3://{s3.address}/missing/logs"
    with server_of(tmp_path, target, "--http-workers=0", "--exit-timeout-secs=5", **KEYS) as server:
        server.json("POST", PATH, good_document())
        assert server.stop() == 0
        assert "the bucket 'missing' does not exist: s3:PutObject on" in server.log_text()
