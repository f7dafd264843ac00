"""Many models in one container, as the platform changes them: load each, invoke each, unload each, then repeat.

The first cycle includes what a process allocates only once: code, threads, an allocator's arenas. The second must
return the memory that it takes.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

from bench.cases import CASES, Array
from bench.models.served import SHIPPED
from bench.results import Figures
from bench.sagemaker.servers import Client, MultiModelServer, invocation, invoked

CASE = next(case for case in CASES if case.key == "d-binary")
TITLE = "multi-model"
CYCLES = 2
ABOVE_START_MB = 20.0
ABOVE_START = 0.1


@dataclass(slots=True)
class Cycle:
    """Milliseconds of each request, and resident MB of the worker."""

    load_ms: list[float] = field(default_factory=list)
    invoke_ms: list[float] = field(default_factory=list)
    unload_ms: list[float] = field(default_factory=list)
    before_mb: float = 0.0
    loaded_mb: float = 0.0
    after_mb: float = 0.0


class Endpoint:
    """The container with the folders of its models, all of them copies of one."""

    def __init__(self, server: MultiModelServer, client: Client, urls: dict[str, str], expected: dict[str, Array]):
        self.server = server
        self.client = client
        self.urls = urls
        self.expected = expected

    def cycle(self) -> Cycle:
        seen = Cycle(before_mb=self._resident_mb())
        for name, url in self.urls.items():
            body = json.dumps({"model_name": name, "url": url}).encode()
            self._timed(seen.load_ms, "POST", "/models", body, {"Content-Type": "application/json"})
        for name in self.urls:
            answer = self._timed(seen.invoke_ms, "POST", f"/models/{name}/invoke", *invocation(CASE))
            self._check(name, answer)
        self._check_listed(len(self.urls))
        seen.loaded_mb = self._resident_mb()
        for name in self.urls:
            self._timed(seen.unload_ms, "DELETE", f"/models/{name}")
        self._check_listed(0)
        seen.after_mb = self._resident_mb()
        return seen

    def _timed(
        self,
        times_ms: list[float],
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str, bytes]:
        start = time.perf_counter()
        answer = self.client.ask(method, path, body, headers)
        times_ms.append((time.perf_counter() - start) * 1e3)
        if answer[0] != 200:
            raise RuntimeError(f"{method} {path} is answered with {answer[0]}: {answer[2][:300]!r}")
        return answer

    def _check(self, name: str, answer: tuple[int, str, bytes]) -> None:
        outputs = invoked(CASE, answer)
        if not all(np.allclose(outputs[key], array, 1e-3, 1e-5) for key, array in self.expected.items()):
            raise RuntimeError(f"'{name}' answers wrongly")

    def _check_listed(self, count: int) -> None:
        listed = json.loads(self.client.ask("GET", f"/models?limit={count + 1}")[2])["models"]
        if len(listed) != count:
            raise RuntimeError(f"{len(listed)} models are listed where {count} are loaded")

    def _resident_mb(self) -> float:
        self.server.settle()
        return self.server.resident_mb()


def measure_multi_model(results: Figures, build: Path, *, models: int) -> None:
    """Measure two cycles of `models` models, one request after another on one connection."""
    root = build / "models"
    urls = _build(root, models)
    session = onnxruntime.InferenceSession(SHIPPED / CASE.model / "1" / "model.onnx")
    expected = dict(zip(CASE.outputs, session.run(list(CASE.outputs), CASE.feeds()), strict=True))
    with MultiModelServer(root, build / "multi-model.log") as server, Client(server.port) as client:
        endpoint = Endpoint(server, client, urls, expected)
        for number in range(CYCLES):
            print(f"{models} models: cycle {number + 1} of {CYCLES}", file=sys.stderr, flush=True)
            _note(results, f"{TITLE}, cycle {number + 1}", endpoint.cycle(), is_last=number == CYCLES - 1)
    shutil.rmtree(root)


def _build(root: Path, models: int) -> dict[str, str]:
    """Write the models. Returns the url of each, by names that look like the platform's."""
    shutil.rmtree(root, ignore_errors=True)
    urls: dict[str, str] = {}
    for number in range(models):
        name = f"{number:032x}"
        folder = root / name / "model"
        shutil.copytree(SHIPPED / CASE.model, folder)
        urls[name] = str(folder)
    return urls


def _note(results: Figures, title: str, seen: Cycle, *, is_last: bool) -> None:
    for what, times_ms in (("load", seen.load_ms), ("invoke", seen.invoke_ms), ("unload", seen.unload_ms)):
        results.note(title, what, "ms", times_ms)
        results.note(title, f"{what}, p99", "ms", [float(np.percentile(times_ms, 99))])
    results.note(title, "resident, before", "MB", [seen.before_mb])
    results.note(title, f"resident, {len(seen.load_ms)} models loaded", "MB", [seen.loaded_mb])
    results.note(title, "resident, all unloaded", "MB", [seen.after_mb])
    if is_last:
        most = max(ABOVE_START_MB, ABOVE_START * seen.before_mb)
        results.at_most(title, "MB above those before", round(most, 1), seen.after_mb - seen.before_mb)
