"""Unloading a model frees its memory, threads and files, however often it was loaded.

Source: docs/spec/repository.md section 1.6, "In-flight requests".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.lifecycle.changing_models import BATCHED, base64_of, factor_of, heavy, load, unload_and_wait
from tests.contract.servers.processes import Held, resident_mb
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.unit.onnx_models import write_version
from tests.waiting import until

pytestmark = pytest.mark.slow

NAME = "heavy"
STARTED = "heavy_at_start"
WEIGHTS_MB = 24
LARGE_MB = 8
WARM_UP = 5
GROWTH_MB = 15
FACTOR = 3.0
OTHER_INPUT = '{"backend": "onnxruntime", "input": [{"name": "OTHER", "data_type": "TYPE_FP32", "dims": [4]}]}'


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("memory")
    repository = link_models(folder / "models", "simple")
    for name in (NAME, STARTED):
        write_version(heavy(FACTOR, WEIGHTS_MB), repository, name, BATCHED)
    loaded = ("--load-model=simple", f"--load-model={STARTED}")
    options = ("--model-control-mode=explicit", *loaded, "--shutdown-grace-secs=0")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running


def load_and_unload(server: ServerProcess) -> None:
    assert load(server, NAME) == (200, "")
    assert factor_of(server, NAME) == FACTOR
    unload_and_wait(server, NAME)


def fail_to_load(server: ServerProcess) -> None:
    """The load fails after the weights were read, because the configuration does not match."""
    status, text = load(server, NAME, config=OTHER_INPUT)
    assert (status, "OTHER" in text) == (400, True), text


def refuse_files(server: ServerProcess) -> None:
    """Two load requests with a large file fail: the configuration is wrong, or the file is not a model."""
    content = base64_of(bytes(LARGE_MB << 20))
    for config, refused in (('{"max_batch_size": -1}', 500), ('{"backend": "onnxruntime"}', 400)):
        status, text = load(server, NAME, config=config, **{"file:1/model.onnx": content})
        assert status == refused, text


def replace(server: ServerProcess) -> None:
    """Reload the model: the new weights are built beside the old ones."""
    model = server.repository / NAME / "1" / "model.onnx"
    model.write_bytes(model.read_bytes())
    assert load(server, NAME) == (200, "")
    assert factor_of(server, NAME) == FACTOR


@pytest.mark.shapes("front-ends")
@pytest.mark.parametrize(
    ("action", "times"),
    [(load_and_unload, 15), (fail_to_load, 15), (refuse_files, 10), (replace, 10)],
    ids=["load and unload", "failed load", "refused files", "reload"],
)
def test_repeated_use_leaks_nothing(server: ServerProcess, action: Callable[[ServerProcess], None], times: int) -> None:
    for _ in range(WARM_UP):
        action(server)
    before = Held.by(server)
    for _ in range(times - WARM_UP):
        action(server)
    # A worker returns freed memory only when it is idle.
    until(lambda: Held.by(server).is_within(before, GROWTH_MB), f"{before}, {Held.by(server)}")
    assert_still_serves(server)


@pytest.mark.shapes("one-process", "front-ends")
@pytest.mark.parametrize("name", [STARTED, NAME])
def test_unload_frees_the_weights(server: ServerProcess, name: str) -> None:
    """Also those of a model of the start, whose objects the garbage collector ignores."""
    assert load(server, name) == (200, "")
    assert factor_of(server, name) == FACTOR
    loaded = resident_mb(server)
    unload_and_wait(server, name)
    until(lambda: resident_mb(server) <= loaded - WEIGHTS_MB * 3 // 4, "the weights stay")
