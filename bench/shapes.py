"""Predicts what front ends and engines give on machines of more cores, and checks the prediction on this one.

    python -m bench shapes [--seconds 6]
    python -m bench shapes --page      also writes the table and the picture into docs/scale.md

The model: E engines and F front ends on C cores answer min(E/e, F/f, C/(e+f)) requests a second, where e and f are the
CPU seconds that a request takes of an engine and of a front end, each of which runs Python on one core at most. The
costs are measured where each is what limits: many front ends before one engine, and one front end before an engine. The
check limits every process to a small share of a core (with cgroups, as root), so that two cores hold as many processes
as a large machine, and compares other shapes with the model. It leaves out caches and memory that cores share,
hyper-threads, and executions longer than their Python.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import machine
from bench.cases import ADD_SUB, ADD_SUB_JSON, Case
from bench.clients import answered, target_of
from bench.models import repositories
from bench.pictures import picture
from bench.results import Program, table
from bench.scale import PAGE, write_into_page
from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import engines_of, front_ends_of
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.waiting import until
from trident.tools.bench.client import LoadClient
from trident.tools.bench.page import Point, lines

PICTURE = ROOT / "docs" / "pictures" / "shapes.svg"
SHARE = 0.05
_PERIOD_US = 20_000
# Front ends get their connections by chance, so that few of them would be uneven.
_CONNECTIONS = 64
_CASES = {"JSON": ADD_SUB_JSON, "binary": ADD_SUB}
# Engines and front ends. The first two give the costs.
_FRONT_END_BOUND, _ENGINE_BOUND = (1, 1), (1, 8)
_CHECKED = ((1, 2), (1, 3), (2, 2), (2, 4), (2, 6), (3, 9))
_CORES = (16, 64)


@contextmanager
def limited(processes: Sequence[int], share: float) -> Iterator[None]:
    """Give each process at most a share of a core. SystemExit if the groups of this machine cannot be written."""
    root = Path("/sys/fs/cgroup")
    is_second = (root / "cgroup.controllers").exists()
    quota = int(share * _PERIOD_US)
    folders = [(root if is_second else root / "cpu") / f"trident-bench-{process}" for process in processes]
    try:
        for folder, process in zip(folders, processes, strict=True):
            folder.mkdir()
            if is_second:
                (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
            (folder / "cgroup.procs").write_text(str(process))
    except OSError as error:
        raise SystemExit(f"the share of a core cannot be limited: {error}; run it as root, with cgroups") from None
    try:
        yield
    finally:
        for folder in folders:
            if folder.exists():
                until(lambda procs=folder / "cgroup.procs": not procs.read_text())  # type: ignore[misc]
                folder.rmdir()


def measure(repository: Path, log: Path, shape: tuple[int, int], case: Case, seconds: float) -> tuple[float, ...]:
    """Requests a second, and the CPU seconds of a request in the engines and in the front ends."""
    engines, front_ends = shape
    body, headers = case.body()
    options = (f"--engines={engines}", f"--http-workers={front_ends}", "--platform=plain", "--allow-grpc=false")
    with ExitStack() as stack:
        server = ServerProcess(repository, log, *options)
        # The groups are removed when the processes have ended.
        groups = stack.enter_context(ExitStack())
        stack.enter_context(server)
        own, others = engines_of(server), front_ends_of(server)
        if (len(own), len(others)) != shape:
            raise RuntimeError(f"expected {shape} engines and front ends, found {len(own)} and {len(others)}")
        groups.enter_context(limited([*own, *others], SHARE))
        url = f"http://{HOST}:{server.http_port}{case.path}"
        client = stack.enter_context(LoadClient(target_of(url, [body], headers, connections=1)))
        client.run(2.0, concurrency=_CONNECTIONS * front_ends)
        before = machine.cpu_seconds(own), machine.cpu_seconds(others)
        sample = client.run(seconds, concurrency=_CONNECTIONS * front_ends)
        after = machine.cpu_seconds(own), machine.cpu_seconds(others)
    count = len(answered(sample))
    return (count / sample.seconds, *((now - then) / count for then, now in zip(before, after, strict=True)))


def rate_of(engines: int, front_ends: int, costs: tuple[float, float], cores: float) -> float:
    """Requests a second of a shape: the model."""
    engine_s, front_end_s = costs
    return min(engines / engine_s, front_ends / front_end_s, cores / (engine_s + front_end_s))


def main(arguments: Sequence[str]) -> None:
    parser = Program("shapes", __doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", action="store_true", help=f"write the figures into {PAGE.relative_to(ROOT)}")
    given, publication, figures = parser.begin(arguments)
    rows, series = [], []
    with tempfile.TemporaryDirectory(prefix="shapes-") as place:
        repositories.build(Path(place, "models"))

        def measured(name: str, case: Case, shape: tuple[int, int]) -> tuple[float, ...]:
            runs = [
                measure(Path(place, "models"), Path(place, f"log-{name}-{shape}"), shape, case, given.seconds)
                for _ in range(given.rounds)
            ]
            label = f"add/sub, {name}; engines {shape[0]}, front ends {shape[1]}; {SHARE:g} of a core each"
            figures.note(label, "requests/s", "1/s", [run[0] for run in runs])
            figures.note(label, "CPU of the engines", "µs", [1e6 * run[1] for run in runs])
            figures.note(label, "CPU of the front ends", "µs", [1e6 * run[2] for run in runs])
            return tuple(statistics.median(column) for column in zip(*runs, strict=True))

        for name, case in _CASES.items():
            costs = measured(name, case, _ENGINE_BOUND)[1], measured(name, case, _FRONT_END_BOUND)[2]
            for shape in _CHECKED:
                rate = measured(name, case, shape)[0]
                expected = SHARE * rate_of(*shape, costs, cores=sum(shape))
                rows.append([name, *map(str, shape), f"{expected:,.0f}", f"{rate:,.0f}", f"{expected / rate:.2f}"])
            for cores in _CORES:
                points = [
                    Point(each, rate_of(each, cores - each, costs, cores) / 1000) for each in range(1, cores // 2 + 1)
                ]
                series.append((f"{name}, {cores} cores", points))
    text = table(["request", "engines", "front ends", "model, requests/s", "measured", "ratio"], rows)
    figures.publish(publication, "-shapes")
    if given.page:
        write_into_page("shapes", f"{machine.sentence()}.\n\n{text}")
        title = "Requests/s by the rule; cores without an engine have a front end"
        PICTURE.write_text(picture(lines(title, series, x="engines", y="1,000/s")))
