"""Topology of a server: engines, front ends, and the GPUs of each engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.project import ROOT
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings
from trident.app.supervisor.start import FailureNote, Topology, choose_topology, gpus_of_engine, usable_gpus
from trident.core.lifecycle.options import EnginePlace

REPOSITORY = "--model-repository=/models"


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings([*arguments], environ)


BY_CORES = {0.5: 0, 1: 0, 2: 0, 3.9: 0, 4: 2, 5.5: 2, 6: 3, 8: 4, 9: 4, 64: 4}
AUTO = {1: (1, 0), 1.5: (1, 0), 2: (1, 0), 4: (1, 2), 7: (1, 3), 8: (2, 5), 16: (4, 10), 64: (16, 40)}


@pytest.mark.parametrize(
    ("arguments", "cores", "gpus", "engines", "workers"),
    [
        *(((), cores, 0, 1, workers) for cores, workers in BY_CORES.items()),
        *((("--engines=auto",), cores, 0, *numbers) for cores, numbers in AUTO.items()),
        # Every GPU has an engine and a front end, on few cores, too.
        *((("--engines=auto",), cores, 2, 2, 2) for cores in (1, 1.5, 4)),
    ],
)
def test_automatic_topology_follows_cores_and_gpus(
    arguments: tuple[str, ...], cores: float, gpus: int, engines: int, workers: int
) -> None:
    choice = choose_topology(settings(REPOSITORY, *arguments), cores, gpus)
    assert (choice.engines, choice.http_workers) == (engines, workers)
    assert f"{cores:g} cores" in choice.reason


@pytest.mark.parametrize("cores", [2, 64])
def test_multi_model_endpoint_has_one_process_by_default(cores: float) -> None:
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "8080"}

    def choice(*arguments: str) -> Topology:
        return choose_topology(settings("--platform=sagemaker", *arguments, **variables), cores)

    assert (choice().http_workers, choice("--engines=auto").http_workers) == (0, 0)
    assert "memory" in choice().reason
    assert choice("--http-workers=2")[0::2] == (2, 1)
    assert choice("--engines=2").engines == 2
    assert choice("--engines=2").http_workers >= 2


def test_engine_count_defaults_to_one() -> None:
    assert choose_topology(settings(REPOSITORY), 64).engines == 1
    choice = choose_topology(settings(REPOSITORY, "--engines=3"), 2)
    assert choice == Topology(3, "there are 2 cores", 3)
    assert str(choice) == "3 HTTP workers in front of 3 engine processes: there are 2 cores"
    assert choose_topology(settings(REPOSITORY, "--engines=3", "--http-workers=1"), 2)[0::2] == (1, 3)
    assert choose_topology(settings(REPOSITORY, "--engines=auto", "--http-workers=0"), 64).engines == 1


GPUS = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


@pytest.mark.parametrize(
    ("engines", "shares"),
    [
        (4, GPUS),
        (2, ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
        (3, ["GPU-a", "GPU-b", "GPU-c,GPU-d"]),
        (5, [*GPUS, "GPU-a"]),
    ],
)
def test_gpus_are_divided_among_engines(engines: int, shares: list[str]) -> None:
    assert [gpus_of_engine(EnginePlace(index, engines), GPUS) for index in range(engines)] == shares


@pytest.mark.parametrize("gpus", [[], ["GPU-a"], ["GPU-a", ""]], ids=["none", "one", "one that cannot be named"])
def test_indivisible_gpus_stay_visible_to_every_engine(gpus: list[str]) -> None:
    assert gpus_of_engine(EnginePlace(1, 2), gpus) is None


def test_cpu_installation_ignores_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.app.supervisor.start.gpu_uuids", lambda visible: tuple(GPUS))
    monkeypatch.setattr("trident.app.supervisor.start._GPU_PACKAGE", "no_such_package")
    assert usable_gpus(None) == 0
    monkeypatch.setattr("trident.app.supervisor.start._GPU_PACKAGE", "numpy")
    assert usable_gpus(None) == 4


SIGNALS_BEFORE_THE_HANDLERS = """
import os, signal, threading
from trident.app.supervisor.start import hold_stop_signals, note_stop_signals, send_noted_signals

lost, seen, masks = [], [], []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: lost.append(number))
hold_stop_signals()
os.kill(os.getpid(), signal.SIGTERM)
note_stop_signals()
os.kill(os.getpid(), signal.SIGUSR1)
thread = threading.Thread(target=lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
thread.start()
thread.join()
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: seen.append(number))
assert seen == []
send_noted_signals()
assert sorted(seen) == [signal.SIGUSR1, signal.SIGTERM], seen
assert lost == [], lost
assert masks == [set()], masks
"""


def test_signals_before_the_handlers_of_a_worker_are_delivered_later() -> None:
    code = [sys.executable, "-c", SIGNALS_BEFORE_THE_HANDLERS]
    ended = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("reason", ["Internal - no models", "kaputt: ü", "x" * (1 << 17)])
def test_parent_reads_the_failure_note_of_its_child(reason: str) -> None:
    note = FailureNote()
    note.write("an earlier and longer reason that the next one replaces")
    child = os.fork()
    if not child:
        note.write(reason)
        os._exit(0)
    os.waitpid(child, 0)
    assert note.read() == reason[: (1 << 16) - 1]
