"""The model repository: cold starts from an emulator of S3, and the start of a tiny server."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from bench.cases import ADD_SUB_JSON
from bench.machine import tree_seconds
from bench.models.repositories import SHIPPED, build_big
from bench.runner import Benchmark, Run
from bench.servers.server import Server, trident
from tests.project import ROOT

BUCKET, MODEL = "bench", "big"
OWN, OTHER = "trident", "the other checkout"
# The clients use nothing that this machine has configured for AWS.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
LIMIT_S = 1200.0
# What a person would write: boto3's transfer manager with its defaults, and nothing else.
SCRIPT = """
import pathlib, sys
import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager

endpoint, prefix, folder = sys.argv[1:]
client = boto3.session.Session().client("s3", endpoint_url=endpoint)
pages = client.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix=prefix)
with create_transfer_manager(client, TransferConfig()) as manager:
    futures = []
    for key in [entry["Key"] for page in pages for entry in page["Contents"]]:
        path = pathlib.Path(folder, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        futures.append(manager.download("bench", key, str(path)))
    for future in futures:
        future.result()

import onnxruntime

onnxruntime.InferenceSession(f"{folder}/{prefix}1/model.onnx", providers=["CPUExecutionProvider"])
"""


def _checkouts(run: Run) -> dict[str, Path]:
    return {OWN: ROOT} | ({OTHER: Path(run.options.beside).resolve()} if run.options.beside else {})


def _server(run: Run, repository: Path | str, *options: str, checkout: Path = ROOT) -> Server:
    server = trident(repository, run.folder / "trident.log", checkout=checkout, environment=ENVIRONMENT)
    # Added later, because the names of ports in them are not filled.
    server.command += [*options, *run.options.options]
    return server


def s3(run: Run) -> None:
    """A cold start with an empty cache beside a script that downloads the same files and makes a session, and the
    second start, which must not download. All take turns. CPU time is that of the server, and that of the storage.
    """
    storage_folder = run.folder / f"big-{run.options.megabytes}"
    build_big(storage_folder / BUCKET / MODEL, megabytes=run.options.megabytes)
    folder, empty = run.folder / "cold", run.folder / "empty"
    empty.mkdir(exist_ok=True)
    seconds: dict[str, list[float]] = defaultdict(list)
    requests: dict[str, list[float]] = defaultdict(list)
    command = [sys.executable, "-m", "bench.servers.object_server", str(storage_folder), "--port={http}"]
    with Server("storage", command, run.folder / "storage.log") as storage:
        repository = f"s3://{storage.url('')}/{BUCKET}"
        option = f"--model-cache-directory={folder}"
        for number in range(run.options.rounds):
            print(f"s3: round {number + 1} of {run.options.rounds}", file=sys.stderr, flush=True)
            _empty(folder)
            start = time.perf_counter()
            command = [sys.executable, "-c", SCRIPT, storage.url(""), f"{MODEL}/", str(folder)]
            subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, timeout=LIMIT_S)
            seconds["a script: its start, download, session"].append(time.perf_counter() - start)
            for name, checkout in _checkouts(run).items():
                _empty(folder)
                before = tree_seconds(storage.process.pid)
                with _server(run, repository, option, checkout=checkout) as server:
                    seconds[f"start to ready, empty cache, {name}"].append(server.ready_seconds)
                    seconds[f"CPU time until ready, {name}"].append(tree_seconds(server.process.pid))
                seconds[f"CPU time of the storage, {name}"].append(tree_seconds(storage.process.pid) - before)
                asked = len(storage.log.read_text().splitlines())
                with _server(run, repository, option, checkout=checkout) as server:
                    seconds[f"start to ready, full cache, {name}"].append(server.ready_seconds)
                lines = storage.log.read_text().splitlines()[asked:]
                listings = sum("list-type=2" in line for line in lines)
                requests[f"listings of the second start, {name}"].append(listings)
                requests[f"requests for objects of the second start, {name}"].append(len(lines) - listings)
            with _server(run, storage_folder / BUCKET) as server:
                seconds["start to ready, local repository"].append(server.ready_seconds)
            with _server(run, empty) as server:
                seconds["start to ready without a model"].append(server.ready_seconds)
    shutil.rmtree(folder, ignore_errors=True)
    title = f"s3, {run.options.megabytes} MB"
    medians = {what: run.results.note(title, what, "s", values).median for what, values in seconds.items()}
    for what, values in requests.items():
        run.results.note(title, what, "requests", values)
    own = medians[f"start to ready, empty cache, {OWN}"]
    script = medians["a script: its start, download, session"]
    run.results.at_most(title, "ready over the script", 1.1, own / script)
    again = medians[f"start to ready, full cache, {OWN}"]
    local = medians["start to ready, local repository"]
    run.results.at_most(title, "second start over the local repository's", 1.1, again / local)
    objects = max(requests[f"requests for objects of the second start, {OWN}"])
    run.results.at_most(title, "requests for objects of the second start", 0, objects)


def _empty(folder: Path) -> None:
    """Delete all downloads, and wait until the disk has written what the last contender left behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    os.sync()


SHAPES = {"one process": 0, "two front ends": 2}
REST_S = 1.0
REQUESTS = 200


def tiny(run: Run) -> None:
    """The start of a server of one tiny model, in one process and with two front ends: time, CPU time, memory.

    Memory is read a second after the server is ready, so that what is done then is in it; and again after requests.
    Resident memory counts pages that processes share once for each of them, proportional memory (PSS) once.
    """
    repository = run.folder / "tiny"
    shutil.copytree(SHIPPED / "simple", repository / "simple", dirs_exist_ok=True)
    body, headers = ADD_SUB_JSON.body()
    for shape, workers in SHAPES.items():
        found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for number in range(run.options.starts):
            print(f"{shape}: start {number + 1} of {run.options.starts}", file=sys.stderr, flush=True)
            for name, checkout in _checkouts(run).items():
                with _server(run, repository, f"--http-workers={workers}", checkout=checkout) as server:
                    found[name, "start to ready", "s"].append(server.ready_seconds)
                    found[name, "CPU time until ready", "s"].append(tree_seconds(server.process.pid))
                    time.sleep(REST_S)
                    for when in ("", f" after {REQUESTS} requests"):
                        if when:
                            for _ in range(REQUESTS):
                                server.ask("POST", ADD_SUB_JSON.path, body, headers)
                        found[name, f"resident, all processes{when}", "MB"].append(server.total_mb("Rss:"))
                        found[name, f"proportional (PSS), all processes{when}", "MB"].append(server.total_mb("Pss:"))
        for (name, what, unit), values in found.items():
            run.results.note(f"{shape}, {name}", what, unit, values)
        if not workers:
            ready = statistics.median(found[OWN, "start to ready", "s"])
            run.results.at_most(shape, "start to ready, s", 0.5, ready)
            resident = max(found[OWN, "resident, all processes", "MB"])
            run.results.at_most(shape, "resident, all processes, MB", 90, resident)


REPOSITORY = Benchmark(
    "The model repository: s3, cold starts of a big model from an emulator of S3 beside a script that does the same; "
    "tiny, the start and memory of a server of one tiny model (without PYTHONDONTWRITEBYTECODE, so that the modules "
    "are compiled).",
    lambda models: None,
    {},
    probes={"s3": s3, "tiny": tiny},
    arguments={
        "rounds": (3, "rounds of s3; the median counts"),
        "megabytes": (1024, "s3: weights of the model, MB of 2**20"),
        "starts": (10, "tiny: starts of each server"),
        "beside": (None, "tiny, s3: the folder of another checkout"),
    },
)
