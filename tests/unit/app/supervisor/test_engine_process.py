"""A real engine process; the test is its front end.

Contract tests in tests/contract/remote kill it, and run it under a real main process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.core.remote.remote_parts import LIMIT_S, ask, connected
from trident.app.supervisor.private_directory import PrivateDirectory
from trident.app.supervisor.start import STOP_ENGINE
from trident.core.errors import ModelNotFound
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.remote.calls import CALLS
from trident.core.remote.control_log import Change, ControlLog
from trident.core.remote.engine_client import RemoteEngine

pytestmark = pytest.mark.slow

# The engine process must find its parent, which is this process, alive.
PROGRAM = """
import logging, os, sys
from pathlib import Path
from trident.app.supervisor.engine_process import EngineProcess
from trident.app.supervisor.start import FailureNote
from trident.app.supervisor.private_directory import PrivateDirectory
from trident.app.settings.reading import read_settings
logging.basicConfig(level=logging.INFO)
directory = PrivateDirectory(Path(sys.argv[1]))
directory._owner = os.getppid()
note = FailureNote()
status = EngineProcess(read_settings(sys.argv[2:]), directory, os.getppid(), 1, note).run()
print("note:", note.read())
sys.exit(status)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[PrivateDirectory]:
    made = PrivateDirectory.make()  # not in `tmp_path`, which may be too long for a socket
    yield made
    made.remove()


class Running:
    """The engine's process, as a context manager."""

    def __init__(self, directory: PrivateDirectory, log: Path, *options: str) -> None:
        self._log = log
        self._command = [sys.executable, "-c", PROGRAM, str(directory.path), *options]

    def __enter__(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        return self.process

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def product(remote: RemoteEngine, model: str, values: list[float]) -> list[float]:
    given = np.array([values], np.float32)
    request = InferenceRequest(model, [InputTensor("INPUT0", "FP32", given.shape, given)])
    response = ask(remote, request).get()
    assert response.error is None, response.error
    found: list[float] = response.outputs[0].array[0].tolist()
    return found


def test_the_engine_process_serves_restores_and_stops(directory: PrivateDirectory, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name in ("first", "second"):
        onnx_models.write_version(onnx_models.identity("FP32"), repository, name, "max_batch_size: 8")
    brought = onnx_models.two_outputs().SerializeToString()
    control_log = ControlLog(directory.changes)
    control_log.note(Change(CALLS["unload_model"], ["first", False, False]))
    control_log.note(
        Change(CALLS["load_model"], ["brought", {"config": '{"max_batch_size": 3}', "file:1/model.onnx": brought}])
    )
    control_log.note(Change(CALLS["load_model"], ["missing", {}]))
    log = tmp_path / "log"
    options = ["--model-control-mode=explicit", "--load-model=first", "--load-model=second"]
    with Running(directory, log, f"--model-repository={repository}", *options) as process:
        with connected(str(directory.socket)) as remote:
            assert directory.socket.stat().st_mode & 0o777 == 0o600
            assert product(remote, "second", [1, 2]) == [1, 2]
            # The engine unpacks files into the private directory, so that they can be removed after a crash.
            assert len(list((directory.path / "files").glob("trident-override-*"))) == 1
            assert product(remote, "brought", [1, 2, 3, 4]) == [-1, -2, -3, -4]
            with pytest.raises(ModelNotFound):
                remote.model("first")
            remote.unload_model("second", False, wait=True)
            assert [change.what for change in ControlLog(directory.changes).changes()][-1] == "second"
            process.send_signal(STOP_ENGINE)
            assert process.wait(LIMIT_S) == 0
        text = log.read_text()
    assert "'missing' could not be restored" in text
    assert "loading: first" not in text
    assert directory.path.exists()  # it is the main process's to remove
    assert list((directory.path / "files").iterdir()) == []


def test_an_engine_that_cannot_load_leaves_the_reason(directory: PrivateDirectory, tmp_path: Path) -> None:
    (tmp_path / "models" / "broken" / "1").mkdir(parents=True)
    (tmp_path / "models" / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    log = tmp_path / "log"
    with Running(directory, log, f"--model-repository={tmp_path / 'models'}") as process:
        assert process.wait(2 * LIMIT_S) == 5
    assert "note: Internal - failed to load all models" in log.read_text()
