"""The client of `trident bench` beside `wrk`, in turns on one server: whether the client is what limits a measurement.

`wrk` is not installed with the project: apt install wrk.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cases import ADD_SUB, ADD_SUB_JSON, Case
from bench.clients import BUILD, answered, target_of
from bench.models import repositories
from bench.results import Figures, Program, Ratio, positive
from bench.servers.server import Server, trident
from trident.app.terminal import counted
from trident.tools.bench.client import LoadClient

_FOLDER = BUILD / "wrk"
_SCRIPT = """\
local file = io.open({body}, "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
{headers}
"""
_RATE = re.compile(r"^Requests/sec: *([\d.]+)$", re.MULTILINE)
_FAILED = re.compile(r"^ *(Non-2xx.*|Socket errors.*)$", re.MULTILINE)


def wrk_rate(url: str, script: Path, connections: int) -> float:
    """The requests/s of a second."""
    command = ["wrk", "--threads=1", f"--connections={connections}", "--duration=1s", f"--script={script}", url]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if failed := _FAILED.search(output):
        raise RuntimeError(failed[0])
    found = _RATE.search(output)
    assert found is not None
    return float(found[1])


def measure(server: Server, case: Case, connections: int, rounds: int, figures: Figures) -> None:
    body, headers = case.body()
    file, script, url = _FOLDER / f"{case.key}.body", _FOLDER / f"{case.key}.lua", server.url(case.path)
    file.write_bytes(body)
    # JSON and Lua escape printable ASCII alike.
    lines = [f"wrk.headers[{json.dumps(name)}] = {json.dumps(text)}" for name, text in headers.items()]
    script.write_text(_SCRIPT.format(body=json.dumps(str(file)), headers="\n".join(lines)))
    ours: list[float] = []
    theirs: list[float] = []
    cores: list[float] = []
    with LoadClient(target_of(url, [body], headers, connections=connections)) as client:
        client.run(0.5, concurrency=connections)
        for turn in range(rounds):
            for is_ours in (True, False) if turn % 2 == 0 else (False, True):
                if is_ours:
                    sample = client.run(1.0, concurrency=connections)
                    ours.append(len(answered(sample)) / sample.seconds)
                    cores.append(sample.cpu)
                else:
                    theirs.append(wrk_rate(url, script, connections))
    title = f"{case.title}, {counted(connections, 'connection')}"
    ratio = Ratio.of(ours, theirs)
    figures.note(title, "trident bench", "requests/s", ours)
    figures.note(title, "wrk", "requests/s", theirs)
    figures.note(title, "trident bench's client", "cores", cores)
    figures.at_least(title, "requests/s over wrk's", 0.8, ratio.median)
    figures.remarks.append(f"{title}: {ratio} of wrk's requests/s, with {statistics.median(cores):.2f} of a core.")
    print(figures.remarks[-1], file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = Program("wrk", __doc__)
    parser.add_argument("--rounds", type=positive, default=7, help="turns of a second of each client; default 7")
    options, publication, figures = parser.begin(arguments)
    if shutil.which("wrk") is None:
        raise SystemExit("`wrk` is not installed. On Debian and Ubuntu: apt install wrk")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    models = _FOLDER / "models"
    repositories.build(models)
    with trident(models, _FOLDER / "server.log") as server:
        for case in (ADD_SUB, ADD_SUB_JSON):
            for connections in (1, 16, 64):
                measure(server, case, connections, options.rounds, figures)
    figures.publish(publication, "-wrk")
