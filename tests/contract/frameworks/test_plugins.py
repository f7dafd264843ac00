"""A plugin of ONNX Runtime from PyPI, WebGPU's, on Vulkan in software, which Debian's package of Chromium has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import TRIDENT
from tests.contract.servers.simple_model import GOLDEN_MODELS, PATH, good_body, is_good_answer
from tests.needed import missing, package
from tests.waiting import until

pytestmark = pytest.mark.slow

CHROMIUM = Path("/usr/lib/chromium")
JSON = {"Content-Type": "application/json"}
ACCELERATOR = """

optimization { execution_accelerators { cpu_execution_accelerator { name: "plugin:%s" } } }
"""
_VARIANT = {"variant_directory": ".", "executor_info": {"ort": {"model_file": "model.onnx"}}}
_VARIANTS = {"plain": {**_VARIANT, "ep": "CPUExecutionProvider"}, "web": {**_VARIANT, "ep": "WebGpuExecutionProvider"}}
PACKAGE = {"schema_version": "1.0", "components": {"simple": {"variants": _VARIANTS}}}


@pytest.fixture(scope="module")
def option() -> str:
    library = package("onnxruntime_ep_webgpu").get_library_path()
    return f"--backend-config=onnxruntime,plugin=webgpu={library}"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    driver = CHROMIUM / "vk_swiftshader_icd.json"
    if not driver.is_file():
        missing(f"{driver} is not there: apt install chromium")
    own = {
        "LD_LIBRARY_PATH": str(CHROMIUM),
        "VK_ICD_FILENAMES": str(driver),
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    }
    return {**os.environ, **own}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for name, plugin in (("simple", "webgpu"), ("packed", "webgpu"), ("other", "unknown")):
        folder = repository / name
        folder.mkdir()
        text = (GOLDEN_MODELS / "simple" / "config.pbtxt").read_text()
        if name == "packed":
            text += 'default_model_filename: "manifest.json"'
            (folder / "1").mkdir()
            (folder / "1" / "manifest.json").write_text(json.dumps(PACKAGE))
            shutil.copyfile(GOLDEN_MODELS / "simple" / "1" / "model.onnx", folder / "1" / "model.onnx")
        else:
            (folder / "1").symlink_to(GOLDEN_MODELS / "simple" / "1")
        (folder / "config.pbtxt").write_text(text.replace('name: "simple"', "") + ACCELERATOR % plugin)
    return repository


@pytest.fixture(scope="module")
def server(
    repository: Path, option: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("log") / "log"
    options = (option, "--exit-on-error=false", "--strict-readiness=false", "--shutdown-grace-secs=0")
    with ServerProcess(repository, log, *options, environment=environment) as running:
        for name in ("simple", "packed"):
            until(lambda: running.request("GET", f"/v2/models/{name}/ready")[0] == 200, limit_s=300)  # noqa: B023
        yield running


def test_a_model_runs_on_a_plugin_with_its_own_answers(server: ServerProcess) -> None:
    for seed in range(3):
        status, _, answer = server.request("POST", PATH, good_body(seed), JSON)
        assert status == 200, answer
        assert is_good_answer(answer, seed)
    log = server.log.read_text()
    assert "plugin 'webgpu' of ONNX Runtime: WebGpuExecutionProvider" in log
    assert "model 'simple' runs batches of" in log
    (state,) = [json.loads(each) for each in [server.request("GET", "/v2/models/simple/stats")[2]]]
    assert state["model_stats"][0]["inference_count"] >= 3


def test_models_of_a_plugin_run_beside_each_other(server: ServerProcess) -> None:
    """WebGPU's plugin ends a process in which two sessions run at the same time."""

    def ask(number: int) -> bool:
        path = PATH if number % 2 else PATH.replace("simple", "packed")
        status, _, answer = server.request("POST", path, good_body(number), JSON)
        return status == 200 and is_good_answer(answer, number)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(64)))


def test_a_package_has_the_variant_of_the_plugin(server: ServerProcess) -> None:
    status, _, answer = server.request("POST", PATH.replace("simple", "packed"), good_body(5), JSON)
    assert status == 200, answer
    assert is_good_answer(answer, 5)
    assert "model 'packed' is a package: variant 'web' for WebGpuExecutionProvider" in server.log.read_text()


def test_model_with_an_unknown_plugin_is_refused_with_the_option(server: ServerProcess) -> None:
    assert server.request("GET", "/v2/models/other/ready")[0] == 503
    log = server.log.read_text()
    assert "the server has no plugin 'unknown'; it has webgpu" in log
    assert "--backend-config=onnxruntime,plugin=unknown=PATH" in log


def test_the_doctor_lists_the_devices_of_a_plugin(option: str, environment: dict[str, str]) -> None:
    found = subprocess.run(
        [TRIDENT, "doctor", option], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    (line,) = [line for line in found.stdout.splitlines() if "plugin:webgpu" in line]
    assert "WebGpuExecutionProvider" in line
    assert " on CPU (" in line
