"""A cold start from an emulator of S3 beside its floor: a script that downloads the same files and makes a session.

The floor is a process of its own, from its start to its session: Python, the SDK's transfer manager with its defaults,
ONNX Runtime, and nothing else. Both begin with an empty folder, in turns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figures
from bench.repository.emulators import BUCKET, EMULATORS, ENVIRONMENT, file_megabytes
from bench.repository.models import build_big
from bench.repository.servers import RepositoryServer
from tests.project import ROOT

MODEL = "big"
MOST_OVER_FLOOR = 1.1
LIMIT_S = 1200.0


def measure_cold(
    results: Figures, build: Path, *, kind: str, megabytes: int, rounds: int, beside: Path | None = None
) -> None:
    """Measure `rounds` cold starts from one emulator; `beside` is another checkout."""
    file_size = file_megabytes(kind, megabytes)
    storage = build / f"big-{megabytes}-in-{file_size}"
    build_big(storage / BUCKET / MODEL, megabytes=megabytes, file_megabytes=file_size)
    folder = build / "cold"
    checkouts = {"trident": None} | ({"the other checkout": beside} if beside else {})
    floor: list[float] = []
    ready: dict[str, list[float]] = {name: [] for name in checkouts}
    with EMULATORS[kind](storage, build / f"{kind}.log") as emulator:
        for number in range(rounds):
            print(f"s3, {kind}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            _empty(folder)
            floor.append(_floor_seconds(emulator.endpoint, folder))
            for name, checkout in checkouts.items():
                _empty(folder)
                option = f"--model-cache-directory={folder}"
                log = build / "trident.log"
                with RepositoryServer(name, emulator.repository, log, option, checkout=checkout) as server:
                    ready[name].append(server.ready_seconds)
    shutil.rmtree(folder, ignore_errors=True)
    title = f"s3, {kind}, {megabytes} MB"
    least = results.note(title, "a script: download and session", "s", floor)
    for name, seconds in ready.items():
        results.note(title, f"start to ready, empty cache, {name}", "s", seconds)
    own = sorted(ready["trident"])[rounds // 2]
    results.at_most(title, "ready over the script", MOST_OVER_FLOOR, own / least.median)


def _floor_seconds(endpoint: str, folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "bench.repository.floor", endpoint, MODEL, str(folder)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        check=True,
        timeout=LIMIT_S,
    )
    return time.perf_counter() - start


def _empty(folder: Path) -> None:
    """Delete all downloads, and wait until the disk has written what the last contender left behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    os.sync()
