from __future__ import annotations

import gc
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project import ROOT
from trident.app.process.environment import (
    IdleTrim,
    keep_freed_memory,
    keep_memory_shared,
    settle_collector,
    use_one_heap,
)
from trident.app.worker.listening_sockets import owner_of


@pytest.mark.parametrize(
    ("program", "variable", "default"),
    [
        ("import trident", "ORT_DISABLE_TELEMETRY", "1"),
        ("from trident.app.process.environment import *; let_openmp_sleep()", "OMP_WAIT_POLICY", "PASSIVE"),
    ],
)
def test_a_default_is_set_unless_a_user_chose_otherwise(program: str, variable: str, default: str) -> None:
    program += f"; import os; print(os.environ[{variable!r}])"
    others = {name: value for name, value in os.environ.items() if name != variable}
    for given, expected in ({}, default), ({variable: "chosen"}, "chosen"):
        command = [sys.executable, "-c", program]
        assert subprocess.check_output(command, cwd=ROOT, env=others | given, text=True).strip() == expected


def test_exit_now_flushes_the_output_and_skips_pythons_finalisation() -> None:
    program = (
        "import atexit, sys; from trident.app.process.environment import exit_now; atexit.register(print, 'finalised');"
        "sys.stdout.write('written'); exit_now(7)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stdout) == (7, "written")


# It signals itself while it reads the settings of a server.
SCRIPT = """
import os, sys
import trident.app.cli
class Reading:
    def find_spec(self, name, path, target=None):
        if name == "trident.app.settings.reading":
            os.kill(os.getpid(), int(sys.argv.pop()))
sys.meta_path.insert(0, Reading())
sys.argv[1:1] = ["serve", "/none"]
sys.exit(trident.app.cli.main())
"""


STRAY = """
import trident.app.cli, trident.app.process.environment, os, signal
trident.app.process.environment.pass_over_stray_signals()
for name in "ALRM VTALRM PROF IO PWR STKFLT USR1 USR2".split():
    os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
print("lives")
"""


def test_server_ignores_stray_signals() -> None:
    ended = subprocess.run([sys.executable, "-c", STRAY], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "lives\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_during_imports_ends_the_server(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, str(int(number))]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0
   2: 00000000:1F42 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4713 1 0 100 0 0 10 0
"""


def test_the_owner_of_a_port_is_found_in_proc(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TABLE)
    for pid, inode in (("7", "4713"), ("8", "4711")):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to(f"socket:[{inode}]")
        (tmp_path / pid / "cmdline").write_bytes(b"python\0server\0models\0--key=secret\0")
    assert owner_of(8000, tmp_path) == "python server models (pid 8)"
    (tmp_path / "8" / "cmdline").write_bytes(b"")  # a thread of the kernel has none
    (tmp_path / "8" / "comm").write_text("kworker\n")
    assert owner_of(8000, tmp_path) == "kworker (pid 8)"
    assert owner_of(8001, tmp_path) == ""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    # Restore the frozen objects of the test session, without the garbage of this test.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("exempt", [settle_collector, keep_memory_shared])
def test_present_objects_are_exempt_from_collection(exempt: Callable[[], None]) -> None:
    kept = Cycle()
    exempt()
    assert all(each is not kept for each in gc.get_objects())


def test_glibc_accepts_the_options() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    assert use_one_heap() is (platform.libc_ver()[0] == "glibc")


def test_memory_is_returned_once_after_each_idle_time() -> None:
    calls: list[str] = []
    idle = IdleTrim(lambda: calls.append("release"), lambda: calls.append("trim"), 5, lambda: calls.append("collect"))
    idle.tick(10.0, 0.0)
    assert calls == []  # no work yet, so nothing to return
    idle.tick(11.0, 11.0)
    idle.tick(15.0, 14.0)
    idle.tick(19.0, 14.0)
    assert calls == []
    idle.tick(19.5, 14.0)
    idle.tick(60.0, 14.0)
    assert calls == ["release", "collect", "trim"]
    idle.tick(61.0, 60.5)
    idle.tick(70.0, 60.5)
    assert calls == ["release", "collect", "trim"] * 2
