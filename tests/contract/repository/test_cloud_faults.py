"""Storage that fails while a server loads from it: the right weights are loaded in the end, or the reason is reported.

Source: docs/spec/repository.md sections 1.6 and 1.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import quote

import pytest

from tests.contract.lifecycle.changing_models import heavy, index, load
from tests.contract.repository.cloud_models import (
    KEYS,
    CloudRepository,
    assert_serves,
    cloud_server,
    reasons,
    repository_metric,
)
from tests.contract.repository.fault_proxy import Answer, Corrupt, Fault, FaultProxy, Reset, Truncate
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

MIB = 1 << 20
MODELS = {factor: heavy(factor, 6) for factor in (2.0, 3.0)}
READY = {"version": "1", "state": "READY"}


def weights(name: str, factor: float) -> bytes:
    """SIZE bytes that no other model has, because the cache shares equal objects."""
    MODELS[factor].doc_string = name.ljust(20)
    return bytes(MODELS[factor].SerializeToString())


SIZE = len(weights("", 2.0))


@dataclass
class Broken:
    """A server in explicit mode, one of its repositories, and the proxy of its storage."""

    server: ServerProcess
    repository: CloudRepository
    proxy: FaultProxy

    def put(self, name: str, factor: float = 2.0) -> str:
        """A model of SIZE; the beginning of the request lines for its weights."""
        self.repository.put_model(name)
        self.repository.put(f"{name}/1/model.onnx", weights(name, factor))
        path = f"models/{name}/1/model.onnx"
        if isinstance(self.repository.emulator, S3Emulator):
            return f"GET /broken/{path}"
        return f"GET /download/storage/v1/b/broken/o/{quote(path, safe='')}"

    def name(self, kind: str) -> str:
        return f"{kind}-{'s3' if isinstance(self.repository.emulator, S3Emulator) else 'gs'}"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Broken]]:
    with ExitStack() as stack:
        emulators: dict[str, S3Emulator | GcsEmulator] = {
            "s3": stack.enter_context(S3Emulator()),
            "gs": stack.enter_context(GcsEmulator()),
        }
        repositories = {name: CloudRepository(each, "broken", "models") for name, each in emulators.items()}
        for name, repository in repositories.items():
            repository.put_model(f"whole-{name}", 4.0)
        proxies = {name: stack.enter_context(FaultProxy(each.endpoint)) for name, each in emulators.items()}
        server = cloud_server(
            tmp_path_factory.mktemp("broken"),
            "log",
            repositories["s3"].uri(proxies["s3"].endpoint),
            f"--model-repository={repositories['gs'].uri()}",
            "--model-control-mode=explicit",
            STORAGE_EMULATOR_HOST=proxies["gs"].endpoint,
        )
        stack.enter_context(server)
        yield {name: Broken(server, repositories[name], proxies[name]) for name in emulators}
        assert KEYS["AWS_SECRET_ACCESS_KEY"] not in server.log_text()


@pytest.fixture(params=["s3", "gs"])
def broken(both: dict[str, Broken], request: pytest.FixtureRequest) -> Iterator[Broken]:
    """Faults are for requests of objects only, because a listing goes to both storages."""
    one = both[request.param]
    yield one
    assert one.proxy.waiting == 0


@pytest.mark.parametrize(
    ("kind", "faults", "bytes_more"),
    [
        # The SDK withholds up to 1 MiB of a response that breaks. The bytes before it are not fetched again.
        ("everything", [Answer(500), Truncate(after=2 * MIB), Answer(503), Reset(after=2 * MIB)], 2 * MIB),
        ("damaged", [Corrupt(at=MIB)], SIZE),
    ],
)
def test_broken_download_is_complete_in_the_end(
    broken: Broken, kind: str, faults: Sequence[Fault], bytes_more: int
) -> None:
    server, proxy, name = broken.server, broken.proxy, broken.name(kind)
    where = broken.put(name)
    for fault in faults:
        proxy.inject(fault, where=where)
    bytes_before, objects_before = proxy.passed_bytes, repository_metric(server, "downloaded_objects_total")
    assert load(server, name) == (200, "")
    assert_serves(server, name, 2.0)
    # Besides the weights: the listing and the configuration.
    assert SIZE <= proxy.passed_bytes - bytes_before <= SIZE + bytes_more + 100_000
    assert repository_metric(server, "downloaded_objects_total") - objects_before == 2
    assert (f"'{name}/1/model.onnx' arrived damaged" in server.log_text()) == (kind == "damaged")


def test_weights_damaged_twice_are_not_loaded(broken: Broken) -> None:
    server, name = broken.server, broken.name("twice")
    where = broken.put(name)
    broken.proxy.inject(Corrupt(at=SIZE - 100), times=2, where=where)
    status, said = load(server, name)
    assert status == 400
    place = broken.repository.uri(broken.proxy.endpoint).replace("http://", "")
    reason = f"'{name}/1/model.onnx' arrived damaged from {place}, twice: checksum md5 expected "
    assert reason in said
    assert reason in reasons(server, name)
    until(lambda: reason in server.log_text())
    refused = server.request("POST", f"/v2/models/{name}/infer", b"{}")
    assert refused[0] == 503
    assert reason.encode() in refused[2]
    assert load(server, name) == (200, "")  # the damaged bytes were not kept
    assert_serves(server, name, 2.0)
    assert index(server, name) == [READY]
