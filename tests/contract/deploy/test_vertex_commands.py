"""The actions of `python -m deploy.vertex` on the emulator's empty project, with small scripts as containers."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform_v1beta1

from deploy.vertex.__main__ import run
from tests.contract.emulators.emulator_process import LIMIT_S, EmulatorThread
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.platforms.container import platform_environment
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.servers.simple_model import good_document
from tests.project import ROOT
from trident.tools.emulators.vertex.batch import InstancesFormat, Storage
from trident.tools.emulators.vertex.emulator import Emulator, EmulatorOptions

LOCATION = "projects/123456789012/locations/us-central1"
ENDPOINT = f"{LOCATION}/endpoints/digits"
MACHINE = ("--machine-type=n1-standard-4", "--endpoint=digits")
UPLOAD = ("--image=image", "--artifact-uri=gs://zoo/digits")

pytestmark = pytest.mark.slow

# Answers every request with predictions of its arguments and its environment.
SERVE = """\
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Connection(BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.path == os.environ["AIP_HEALTH_ROUTE"], self.path
        self.answer({})

    def do_POST(self):
        instances = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"]
        found = {"arguments": sys.argv[1:], "environment": dict(os.environ), "path": self.path}
        self.answer({"predictions": [{**found, "instance": each} for each in instances]})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), Connection).serve_forever()
"""


class Site:
    """An emulator and the commands that are run on it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def command(self, action: str, *arguments: str) -> str:
        """Run the command, which must succeed, and return its output."""
        out, errors = io.StringIO(), io.StringIO()
        where = ("--project=my-project", "--location=us-central1", f"--api-endpoint={self.url}")
        status = run([action, *where, *arguments], out, errors, sleep=lambda seconds: time.sleep(seconds / 100))
        assert (status, errors.getvalue()) == (0, ""), out.getvalue()
        return out.getvalue()

    def version(self) -> str:
        """The model's version in the answer to a call; the container's own environment names its deployed model."""
        answer = requests.post(f"{self.url}/v1/{ENDPOINT}:predict", json={"instances": [1]}, timeout=60)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        (prediction,) = document["predictions"]
        assert prediction["environment"]["AIP_DEPLOYED_MODEL_ID"] == document["deployedModelId"]
        assert prediction["environment"]["AIP_STORAGE_URI"] == "gs://zoo/digits"
        assert prediction["arguments"] == [f"--vertex-ai-default-model=v{document['modelVersionId']}"]
        return str(document["modelVersionId"])

    def versions(self, calls: int = 100) -> dict[str, int]:
        found = [self.version() for _ in range(calls)]
        return {each: found.count(each) for each in sorted(set(found))}

    @contextlib.contextmanager
    def called_meanwhile(self) -> Iterator[list[str]]:
        """Call without a pause inside the context; every call must be answered."""
        found: list[str] = []
        ended = threading.Event()

        def call() -> None:
            while not ended.is_set():
                found.append(self.version())

        with ThreadPoolExecutor(4) as pool:
            callers = [pool.submit(call) for _ in range(4)]
            try:
                yield found
            finally:
                ended.set()
        for each in callers:
            each.result()

    def resource(self) -> Any:
        return requests.get(f"{self.url}/v1/{ENDPOINT}", timeout=60).json()


def test_model_is_deployed_shifted_rolled_batched_and_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with GcsEmulator() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.endpoint)
        storage.put("zoo", "in/rows.jsonl", b'{"id": "a", "x": 1}\n{"id": "b", "x": 2}\n')
        storage.put("zoo", "in/rows.txt", b"not of the pattern")
        command = [sys.executable, "-c", SERVE]
        options = EmulatorOptions(model="", command=command, environment={})
        with EmulatorThread(Emulator(options, io.StringIO())) as emulator:
            walk(Site(emulator.url), tmp_path)
            assert emulator.end() == 0


def walk(site: Site, folder: Path) -> None:
    uploaded = site.command("upload", "--model-id=digits", *UPLOAD, "--", "--vertex-ai-default-model=v1")
    assert uploaded.endswith(f"  --model={LOCATION}/models/digits@1\n")
    new = ("--new=dedicated", "--ttl=none", "--deployed-model-id=7")
    assert "id is 7" in site.command("deploy", uploaded.split()[-1], *MACHINE, *new)
    assert site.version() == "1"

    second = ("--parent-model=digits", "--alias=canary", "--no-default")
    assert "models/digits@2" in site.command("upload", *second, *UPLOAD, "--", "--vertex-ai-default-model=v2")
    site.command("deploy", "--model=digits@canary", *MACHINE, "--deployed-model-id=8")
    assert site.resource()["trafficSplit"] == {"7": 100}
    site.command("shift", "--endpoint=digits", "--traffic=7=90", "--traffic=8=10")
    assert site.versions() == {"1": 90, "2": 10}
    with site.called_meanwhile() as found:
        site.command("shift", "--endpoint=digits", "--traffic=7=0", "--traffic=8=100")
        after = len(found)
    assert set(found[after + 8 :]) <= {"2"}
    assert [each["id"] for each in site.resource()["deployedModels"]] == ["8"]

    site.command("upload", "--parent-model=digits", *UPLOAD, "--", "--vertex-ai-default-model=v3")
    client = aiplatform_v1beta1.EndpointServiceClient(
        transport="rest", client_options={"api_endpoint": site.url}, credentials=AnonymousCredentials()
    )
    with site.called_meanwhile() as found:
        rolled: dict[str, Any] = {"previous_deployed_model": "8", "max_surge_replicas": 1}
        model = {"model": f"{LOCATION}/models/digits@3", "id": "9", "rollout_options": rolled}
        operation = client.deploy_model(request={"endpoint": ENDPOINT, "deployed_model": model}).operation
        while not requests.get(f"{site.url}/v1/{operation.name}", timeout=60).json()["done"]:
            time.sleep(0.02)
    assert {"2", "3"} == set(found)
    assert (site.version(), site.resource()["trafficSplit"]) == ("3", {"9": 100})

    given = ("--format=jsonl", "--input=gs://zoo/in/*.jsonl", "--output=gs://zoo/out", "--key-field=id", "--wait")
    printed = site.command("batch", "--model=digits@2", "--name=night", *given, "--machine-type=n1-standard-4")
    assert "succeeded: 2 predicted, 0 failed\n  gs://zoo/out/prediction-1" in printed
    (written,) = Storage().fetch(["gs://zoo/out/prediction-1/predictions_*.jsonl"], InstancesFormat.JSONL, folder)
    lines = [orjson.loads(line) for line in written.read_bytes().splitlines()]
    assert [(line["key"], line["prediction"]["instance"]) for line in lines] == [("a", {"x": 1}), ("b", {"x": 2})]

    site.command("delete", "--endpoint=digits", "--model=digits")
    assert requests.get(f"{site.url}/v1/{ENDPOINT}", timeout=60).status_code == 404
    assert requests.get(f"{site.url}/v1/{LOCATION}/models", timeout=60).json() == {"models": []}


# --- smoke, with the real server in the container


MODELS = ROOT / "deploy" / "models"
DIGIT = ROOT / "deploy" / "digits" / "7.json"
ALL_CALLS = 6


def smoke(emulator: VertexEmulator, request: Path, *arguments: str) -> tuple[int, str, str]:
    _, project, _, location, _, endpoint = emulator.endpoint.split("/")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "deploy.vertex", "smoke"),
            *(f"--project={project}", f"--location={location}", f"--endpoint={endpoint}"),
            *(f"--request={request}", f"--api-endpoint={emulator.url}", f"--timeout-secs={LIMIT_S}", *arguments),
        ],
        cwd=ROOT,
        env=platform_environment({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return finished.returncode, finished.stdout, finished.stderr


def test_every_call_of_a_dedicated_endpoint_is_answered(tmp_path: Path) -> None:
    with VertexEmulator(tmp_path, MODELS / "digits") as emulator:
        status, out, errors = smoke(emulator, DIGIT)
        assert (status, errors) == (0, ""), out
        assert out.count(" ...\n") == 1 + ALL_CALLS
        assert out.count("  1 rows of 10 values\n") == ALL_CALLS - 1
        assert emulator.end() == 0, emulator.text()


def test_shared_endpoint_gets_no_unsupported_calls(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(good_document()))
    with VertexEmulator(tmp_path, MODELS / "simple", "--endpoint-type=shared") as emulator:
        status, out, errors = smoke(emulator, request)
        assert (status, errors) == (0, ""), out
        assert "predict with 1 instances ...\n  1 rows of 32 values" in out
        assert "stream" not in out
        assert out.count(" ...\n") == 1 + ALL_CALLS - 2
        assert emulator.end() == 0, emulator.text()


def test_wrong_request_and_missing_endpoint_fail(tmp_path: Path) -> None:
    with VertexEmulator(tmp_path, MODELS / "simple") as emulator:
        status, out, _ = smoke(emulator, DIGIT)
        assert status == 1
        assert out.count("FAILED: status 400") == ALL_CALLS - 1
        assert "redirected to metrics ...\n  FAILED" not in out
        status, _, errors = smoke(emulator, DIGIT, "--endpoint=77")
        assert status == 1
        assert "is not found" in errors
        assert "Traceback" not in errors
        assert emulator.end() == 0, emulator.text()
