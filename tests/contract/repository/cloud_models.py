"""Models in cloud storage, the servers that serve them, and checks of their weights."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from tests.contract.lifecycle.changing_models import BATCHED, JSON, WIDTH, scaled
from tests.contract.repository.azurite import ACCOUNT, Azurite
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.server import ServerProcess, environment_without

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-example-secret"}
_PLATFORMS = ("AWS_", "AZURE_", "BOTO_", "CLOUDSDK_", "GCE_", "GOOGLE_", "STORAGE_", "TRIDENT_", "TRITON_")
_NO_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}


def cloud_server(
    folder: Path,
    log: str,
    repository: Path | str,
    *options: str,
    ready: bool = True,
    variables: Mapping[str, str] = KEYS,
    **more: str,
) -> ServerProcess:
    """A server whose log, cache and home are in `folder`, by which two servers may share a cache.

    Its environment has nothing that this machine configures for a cloud, and `variables` and `more`.
    """
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return ServerProcess(
        repository,
        folder / log,
        f"--model-cache-directory={folder / 'cache'}",
        "--shutdown-grace-secs=0",
        *options,
        ready=ready,
        environment={**environment_without(*_PLATFORMS), "HOME": str(home), **_NO_MACHINE, **variables, **more},
    )


@dataclass(frozen=True)
class CloudRepository:
    """A model repository under `prefix` of a bucket, which the first `put` makes."""

    emulator: S3Emulator | GcsEmulator | Azurite
    bucket: str
    prefix: str = ""

    def uri(self, endpoint: str = "") -> str:
        """As --model-repository takes it; for S3 with `endpoint` (`http://host:port`) in it, or the emulator's own.

        The others find their emulators through STORAGE_EMULATOR_HOST and AZURE_STORAGE_CONNECTION_STRING.
        """
        path = "/".join(filter(None, (self.bucket, self.prefix)))
        if isinstance(self.emulator, GcsEmulator):
            return f"gs://{path}"
        if isinstance(self.emulator, Azurite):
            return f"as://{ACCOUNT}/{path}"
        return f"s3://{endpoint or self.emulator.endpoint}/{path}"

    def put(self, path: str, content: bytes) -> None:
        self.emulator.put(self.bucket, self._key(path), content)

    def delete(self, path: str) -> None:
        self.emulator.delete(self.bucket, self._key(path))

    def put_version(self, name: str, factor: float, version: int = 1) -> None:
        """`scaled(factor)` in the place of a version's weights."""
        self.put(f"{name}/{version}/model.onnx", scaled(factor).SerializeToString())

    def put_model(self, name: str, *factors: float, config: str = BATCHED) -> None:
        """A model whose versions, from 1 on, are `scaled` by `factors`. No two models have a file in common."""
        self.put(f"{name}/config.pbtxt", f'name: "{name}" {config}'.encode())
        for version, factor in enumerate(factors, 1):
            self.put_version(name, factor, version)

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path


def listings(requests: Iterable[str]) -> int:
    """The number of request lines that ask for a page of a listing."""
    return sum(any(sign in line for sign in ("list-type=2", "/o?", "comp=list")) for line in requests)


def fetched(requests: Iterable[str]) -> Counter[str]:
    """The objects in request lines as `model/path` behind `models/`, with the number of their requests."""
    found: Counter[str] = Counter()
    for line in requests:
        method, target, _ = line.split(" ")
        path = unquote(target.partition("?")[0])
        if method == "GET" and "/models/" in path:
            found[path.partition("/models/")[2]] += 1
    return found


def assert_serves(server: ServerProcess, name: str, factor: float, version: int | None = None) -> None:
    """The model or a version of it must answer as NumPy computes with `factor`."""
    sent = np.arange(1, 2 * WIDTH + 1, dtype=np.float32).reshape(2, WIDTH) / np.float32(3)
    item = {"name": "INPUT0", "datatype": "FP32", "shape": list(sent.shape), "data": sent.tolist()}
    path = f"/v2/models/{name}" + ("" if version is None else f"/versions/{version}")
    status, _, answer = server.request("POST", f"{path}/infer", json.dumps({"inputs": [item]}).encode(), JSON)
    assert status == 200, answer
    (output,) = json.loads(answer)["outputs"]
    came = np.asarray(output["data"], np.float32).reshape(output["shape"])
    np.testing.assert_array_equal(came, sent * np.float32(factor))


def readiness(server: ServerProcess) -> dict[str, Any]:
    """The readiness body of an unready server; empty before it listens."""
    try:
        status, _, body = server.request("GET", "/v2/health/ready")
    except OSError:
        return {}
    assert status == 400, status
    document: dict[str, Any] = json.loads(body)
    return document


def repository_metric(server: ServerProcess, name: str) -> float:
    """The value of `trident_repository_<name>`; 0 if there is no such series yet."""
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    return sum(map(float, re.findall(rf"^trident_repository_{name} (.+)$", page, re.MULTILINE)))


def reasons(server: ServerProcess, name: str) -> str:
    """The reasons of all versions of a model in the index."""
    entries = server.json("POST", "/v2/repository/index")
    return "\n".join(entry.get("reason", "") for entry in entries if entry["name"] == name)
