"""SageMaker's port with many models, which the platform loads from folders, invokes and unloads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers, http, wait_for_port
from tests.triton_answers.sagemaker import request

(PORT,) = free_ports(1)
OPTIONS = ("--allow-sagemaker=true", f"--sagemaker-port={PORT}", "--model-control-mode=explicit")
ENVIRONMENT = {
    "TRIDENT_PLATFORM": "plain",
    "TRIDENT_SAGEMAKER_MODELS_ROOT": "{repository}",
    "SAGEMAKER_MULTI_MODEL": "true",
}
OTHERWISE: dict[str, tuple[str, Any]] = {}
GOLDEN = ROOT / "tests" / "golden" / "models"
TARGET = "X-Amzn-SageMaker-Target-Model"


def write_models(folder: Path) -> None:
    for archive in ("first", "second"):
        shutil.copytree(GOLDEN / "simple", folder / archive / "model" / "simple")
    for name in ("simple", "str_id"):
        shutil.copytree(GOLDEN / name, folder / "several" / "model" / name)
    shutil.copytree(GOLDEN / "broken", folder / "broken" / "model" / "broken")
    (folder / "empty" / "model").mkdir(parents=True)


def ask(server: ServerProcess, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Any:
    answer = http(server, method, path, body, headers, port=PORT)
    del answer["type"]
    if answer["status"] >= 400:
        # Texts name folders, and some errors of Triton have none.
        return answer["status"]
    return answer


def load(server: ServerProcess, name: str, archive: str, headers: Mapping[str, str] = {}) -> Any:
    url = str(server.repository / archive / "model")
    return ask(server, "POST", "/models", {"model_name": name, "url": url}, headers)


def models(server: ServerProcess) -> Any:
    listed = ask(server, "GET", "/models")["body"]["models"]
    root = str(server.repository)
    return sorted((each["modelName"], each["modelUrl"].replace(root, "")) for each in listed if each)


def ask_lifecycle(server: ServerProcess) -> Answers:
    wait_for_port(PORT)
    plain, _ = request()
    found: Answers = {"none": models(server)}
    found["unknown, get"] = ask(server, "GET", "/models/one")
    found["unknown, unload"] = ask(server, "DELETE", "/models/one")
    found["unknown, invoke"] = ask(server, "POST", "/models/one/invoke", plain)
    found["load"] = load(server, "one", "first")
    found["listed"] = models(server)
    found["load again"] = load(server, "one", "first")
    found["another name"] = load(server, "two", "second")
    found["both listed"] = models(server)
    found["get"] = sorted(ask(server, "GET", "/models/two")["body"])
    found["invoke"] = ask(server, "POST", "/models/one/invoke", plain)
    found["invoke the other"] = ask(server, "POST", "/models/two/invoke", plain)
    found["invoke, wrong request"] = ask(server, "POST", "/models/two/invoke", {"inputs": []})
    found["invoke, no body"] = ask(server, "POST", "/models/two/invoke", b"")
    found["unload"] = ask(server, "DELETE", "/models/one")
    found["unload again"] = ask(server, "DELETE", "/models/one")
    found["invoke the unloaded"] = ask(server, "POST", "/models/one/invoke", plain)
    found["load it again"] = load(server, "one", "first")
    found["invoke it again"] = ask(server, "POST", "/models/one/invoke", plain)
    found["unload the other"] = ask(server, "DELETE", "/models/two")
    found["last"] = models(server)
    found["no folder"] = load(server, "gone", "nowhere")
    found["empty folder"] = load(server, "bare", "empty")
    found["broken model"] = load(server, "bad", "broken")
    found["after failures"] = models(server)
    return found


def ask_target_models(server: ServerProcess) -> Answers:
    """The header names the archive of a model, whose name is a hash. Triton's answer has the name of the archive."""
    plain, _ = request()
    header = {TARGET: "target.tar.gz"}
    found = {"load": load(server, "hash", "second", header)}
    found["listed"] = ask(server, "GET", "/models/hash")["status"]
    found["invoke"] = ask(server, "POST", "/models/hash/invoke", plain, header)["body"]["outputs"]
    found["unload"] = ask(server, "DELETE", "/models/hash", None, header)
    return found
