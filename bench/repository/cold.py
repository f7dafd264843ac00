"""A cold start from an emulator of S3 beside its floors: scripts that download the same files and make a session.

    sdk       a process from its start to its session: Python, boto3 with its defaults, ONNX Runtime, and nothing else
    sockets   download and session of a process that has imported everything: bare sockets, no checksums

All begin with an empty folder, in turns. CPU time is that of the server, and that of the emulator which serves it: on a
crowded machine it says more than the time until ready.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from bench.machine import tree_seconds
from bench.repository.emulators import BUCKET, EMULATORS, ENVIRONMENT, Emulator, file_megabytes
from bench.repository.models import build_big
from bench.repository.servers import RepositoryServer
from bench.results import Figures
from tests.project import ROOT

MODEL = "big"
MOST_OVER_FLOOR = 1.1
LIMIT_S = 1200.0
OWN = "trident"
OTHER = "the other checkout"


def measure_cold(
    results: Figures, build: Path, *, kind: str, megabytes: int, rounds: int, beside: Path | None = None
) -> None:
    """Measure `rounds` cold starts from one emulator; `beside` is another checkout."""
    file_size = file_megabytes(kind, megabytes)
    storage = build / f"big-{megabytes}-in-{file_size}"
    build_big(storage / BUCKET / MODEL, megabytes=megabytes, file_megabytes=file_size)
    folder = build / "cold"
    empty = build / "empty"
    empty.mkdir(exist_ok=True)
    seconds: dict[str, list[float]] = defaultdict(list)
    with EMULATORS[kind](storage, build / f"{kind}.log") as emulator:
        for number in range(rounds):
            print(f"s3, {kind}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            _empty(folder)
            start = time.perf_counter()
            _floor("sdk", emulator, folder)
            seconds["a script with boto3: its start, download, session"].append(time.perf_counter() - start)
            if kind == "files":  # the other emulator answers only what is signed
                _empty(folder)
                download, session = map(float, _floor("sockets", emulator, folder).split())
                seconds["bare sockets: download"].append(download)
                seconds["bare sockets: session"].append(session)
            for name, checkout in {OWN: None, **({OTHER: beside} if beside else {})}.items():
                _empty(folder)
                before = tree_seconds(emulator.process.pid)
                option = f"--model-cache-directory={folder}"
                log = build / "trident.log"
                with RepositoryServer(name, emulator.repository, log, option, checkout=checkout) as server:
                    seconds[f"start to ready, empty cache, {name}"].append(server.ready_seconds)
                    seconds[f"CPU time until ready, {name}"].append(server.cpu_seconds())
                seconds[f"CPU time of the emulator, {name}"].append(tree_seconds(emulator.process.pid) - before)
            with RepositoryServer(OWN, str(empty), build / "trident.log") as server:
                seconds["start to ready without a model"].append(server.ready_seconds)
    shutil.rmtree(folder, ignore_errors=True)
    title = f"s3, {kind}, {megabytes} MB"
    medians = {what: results.note(title, what, "s", values).median for what, values in seconds.items()}
    own = medians[f"start to ready, empty cache, {OWN}"]
    script = medians["a script with boto3: its start, download, session"]
    if kind == "files":
        bare = medians["bare sockets: download"] + medians["bare sockets: session"]
        results.note(title, "ready over bare sockets", "ratio", [own / bare])
        whole = medians["start to ready without a model"] + bare
        results.note(title, "ready over (start without a model + bare sockets)", "ratio", [own / whole])
    results.at_most(title, "ready over the script", MOST_OVER_FLOOR, own / script)


def _floor(how: str, emulator: Emulator, folder: Path) -> str:
    """What the floor printed."""
    return subprocess.run(
        [sys.executable, "-m", "bench.repository.floor", how, emulator.endpoint, MODEL, str(folder)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_S,
    ).stdout


def _empty(folder: Path) -> None:
    """Delete all downloads, and wait until the disk has written what the last contender left behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    os.sync()
