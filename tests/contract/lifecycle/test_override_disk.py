"""A load request whose files do not fit on the disk of the server.

Source: docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.changing_files import found_below
from tests.contract.lifecycle.changing_models import OVERRIDE, add_scaled, base64_of, factor_of, load, scaled
from tests.contract.servers.processes import front_ends_of, only
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers"), pytest.mark.shapes("front-ends")]

FILE = "file:1/model.onnx"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system with the room that two front ends need, and 256 KB."""
    # Not in `tmp_path`: the address of a socket is short.
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as disk:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1024k,nr_inodes=24", "tmpfs", disk]
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"no file system may be mounted here (that needs CAP_SYS_ADMIN): {mounted.stderr.strip()}")
        try:
            yield Path(disk)
        finally:
            subprocess.run(["umount", disk], check=True)


def test_files_without_room_on_the_disk_are_refused(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    repository = link_models(tmp_path / "models", "simple")
    add_scaled(repository, "doubled", 2.0)
    options = ("--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0")
    with ServerProcess(repository, tmp_path / "log", *options) as server:
        small = base64_of(scaled(3.0).SerializeToString())
        # Through each front end: the first request of its kind makes files for its metrics.
        for front_end in front_ends_of(server):
            with only(server, front_end):
                status, text = load(
                    server, "doubled", config=OVERRIDE, **{FILE: small, "file:1/x": base64_of(bytes(1 << 20))}
                )
            assert (status, "No space left on device" in text) == (503, True), text
            assert not found_below(small_disk, "trident-override-*")
        for number in range(30):  # now there is no room for a folder
            try:
                (small_disk / f"inode{number}").touch()
            except OSError:
                break
        status, text = load(server, "doubled", config=OVERRIDE, **{FILE: small})
        assert (status, "No space left on device" in text) == (503, True), text
        assert factor_of(server, "doubled") == 2.0
        assert_still_serves(server)
        for file in small_disk.glob("inode*"):
            file.unlink()
        assert load(server, "doubled", config=OVERRIDE, **{FILE: small}) == (200, "")
        assert factor_of(server, "doubled") == 3.0
        log = server.log_text()
    assert "Traceback" not in log
