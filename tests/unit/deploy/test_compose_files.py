"""The images that the compose file builds and runs beside the server."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.project import ROOT

COMPOSE = ROOT / "deploy" / "compose"
_BASE = re.compile(r"docker\.io/library/python:\S+")


def test_emulators_are_those_of_the_tests_on_the_base_of_the_server() -> None:
    pins = re.findall(r'"([a-z0-9-]+)(?:\[[^]]*\])?==([\w.]+)"', (COMPOSE / "emulators" / "Dockerfile").read_text())
    locked = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line)
    assert {name for name, _ in pins} == {"moto", "flask", "flask-cors", "gcp-storage-emulator", "boto3"}
    assert {name: version for name, version in pins if locked[name] != version} == {}
    bases = [
        _BASE.findall(path.read_text())
        for path in (COMPOSE / "emulators" / "Dockerfile", ROOT / "docker" / "Dockerfile")
    ]
    assert bases[0] == bases[1]


@pytest.mark.parametrize(
    "arguments", [[], ["s3", "http://x", "b/p"], ["sagemaker", "http://x"], ["sagemaker", "http://x", "no"]]
)
def test_seed_prints_its_usage(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["seed.py", *arguments])
    with pytest.raises(SystemExit, match=r"python seed.py s3 ENDPOINT"):
        runpy.run_path(str(COMPOSE / "seed.py"), run_name="__main__")
