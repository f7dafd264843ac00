"""docker/Dockerfile: the requirements of the platforms, and the settings of its command."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from docker.lock import STAGES
from tests.project import ROOT
from trident.app.cli import main
from trident.app.settings.server import ServerSettings

_LOGICAL_END = re.compile(r"\\\n\s*")


@dataclass(frozen=True)
class Instruction:
    name: str
    value: str

    @property
    def words(self) -> list[str]:
        return self.value.split()

    @property
    def exec_form(self) -> list[str] | None:
        """The words of a JSON array; None for other forms."""
        try:
            words = json.loads(self.value.partition("CMD ")[2] if self.name == "HEALTHCHECK" else self.value)
        except ValueError:
            return None
        return words if isinstance(words, list) else None


@dataclass
class Stage:
    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [each.value for each in self.instructions if each.name == name]


@dataclass
class Dockerfile:
    """The stages of a Dockerfile; `arguments` are the ARGs before the first stage."""

    arguments: dict[str, str]
    stages: list[Stage]

    @classmethod
    def parse(cls, text: str) -> Dockerfile:
        parsed = cls({}, [])
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        for line in _LOGICAL_END.sub(" ", "\n".join(lines)).splitlines():
            name, _, value = line.strip().partition(" ")
            if name.upper() == "FROM":
                base, _, stage = value.partition(" AS ")
                parsed.stages.append(Stage(base, stage))
            elif parsed.stages:
                parsed.stages[-1].instructions.append(Instruction(name.upper(), value.strip()))
            else:
                variable, _, default = value.partition("=")
                parsed.arguments[variable] = default
        return parsed

    def stage(self, name: str) -> Stage:
        return next(each for each in self.stages if each.name == name)

    def lineage(self, name: str) -> list[Instruction]:
        """All instructions of an image, beginning with those of its base stages."""
        stage = self.stage(name)
        names = {each.name for each in self.stages}
        below = self.lineage(stage.base) if stage.base in names else []
        return [*below, *stage.instructions]


DOCKERFILE = Dockerfile.parse((ROOT / "docker" / "Dockerfile").read_text())
IMAGES = ("cpu", "gpu")


def last(image: str, name: str) -> Instruction:
    return [each for each in DOCKERFILE.lineage(image) if each.name == name][-1]


def labels(image: str) -> dict[str, str]:
    values = " ".join(each.value for each in DOCKERFILE.lineage(image) if each.name == "LABEL")
    return dict(re.findall(r'([\w.-]+)="([^"]*)"', values))


def variables(image: str) -> dict[str, str]:
    words = [word for each in DOCKERFILE.lineage(image) if each.name == "ENV" for word in each.words]
    return dict(word.split("=", 1) for word in words)


def test_images_are_built_from_a_pinned_base() -> None:
    base = DOCKERFILE.arguments["BASE_IMAGE"]
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-bookworm", base)
    names = {stage.name for stage in DOCKERFILE.stages}
    assert {stage.base for stage in DOCKERFILE.stages} - names == {"${BASE_IMAGE}"}
    assert DOCKERFILE.stages[-1].name == "cpu"


@pytest.mark.parametrize("image", IMAGES)
class TestImage:
    def test_takes_the_environment_that_its_own_build_stage_made(self, image: str) -> None:
        assert DOCKERFILE.stage(image).values("COPY") == [f"--from=build-{image} /opt/trident /opt/trident"]
        runs = DOCKERFILE.stage(f"build-{image}").values("RUN")
        # Of the stage gpu12, 13 is what CUDA is by default.
        stage = {"cpu": "cpu", "gpu": "gpu${CUDA#13}"}[image]
        assert any(f"requirements-{stage}.lock" in each for each in runs)
        assert any(
            each.replace('"', "") == f"docker/extras/install.sh /opt/trident {stage} ${{EXTRAS}}" for each in runs
        )
        assert {"EXTRAS", "PIP_EXTRA_INDEX_URL"} <= set(DOCKERFILE.stage(f"build-{image}").values("ARG"))

    def test_installs_from_every_lock_file_of_its_stages(self, image: str) -> None:
        copied = " ".join(DOCKERFILE.stage(f"build-{image}").values("COPY"))
        stages = [stage for stage in STAGES if stage.startswith(image)]
        assert all(f"docker/requirements-{stage}.lock " in copied for stage in stages)

    def test_asks_for_huge_pages_for_large_weights(self, image: str) -> None:
        assert variables(image)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"

    def test_has_no_compiler_and_no_package_lists(self, image: str) -> None:
        commands = [each.value for each in DOCKERFILE.lineage(image) if each.name == "RUN"]
        assert commands
        assert not [each for each in commands if re.search(r"apt-get|gcc|pip|curl|wget", each)]

    def test_tells_the_platforms_what_it_can_do(self, image: str) -> None:
        found = labels(image)
        prefix = "com.amazonaws.sagemaker.capabilities."
        assert {name for name, value in found.items() if value == "true"} == {
            prefix + "multi-models",
            prefix + "accept-bind-to-port",
            prefix + "bidirectional-streaming",
        }
        opencontainers = {name.rpartition(".")[2] for name in found if name.startswith("org.opencontainers.image.")}
        assert opencontainers == {"title", "description", "licenses", "version", "revision"}
        assert set(last(image, "EXPOSE").words) == {"8000", "8001", "8002", "8080"}

    def test_is_not_root_and_says_so_by_number(self, image: str) -> None:
        assert last(image, "USER").value == "1000:1000"

    def test_sets_nothing_that_would_win_over_a_platform(self, image: str) -> None:
        assert not [name for name in variables(image) if name.startswith(("TRIDENT_", "SAGEMAKER_", "AIP_"))]

    def test_asks_the_server_whether_it_is_ready(self, image: str) -> None:
        assert last(image, "HEALTHCHECK").exec_form == ["python", "/opt/trident/healthcheck.py"]

    @pytest.mark.parametrize(
        "arguments", [[], ["serve"], ["--http-port=7000"], ["serve", "--http-port=7000"]], ids=" ".join
    )
    def test_serves_whatever_a_platform_gives_it(
        self, image: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRIDENT_MODEL_REPOSITORY", "/models")
        served: list[ServerSettings] = []
        entrypoint, command = last(image, "ENTRYPOINT").exec_form, last(image, "CMD").exec_form
        assert entrypoint == ["trident"]
        assert command is not None
        assert main(arguments or command, serve=lambda settings: served.append(settings) or 0) == 0
        assert [each.http_port for each in served] == [7000 if "--http-port=7000" in arguments else 8000]


def test_only_the_gpu_image_requests_the_driver() -> None:
    asked = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    }
    assert asked.items() <= variables("gpu").items()
    assert not asked.keys() & variables("cpu").keys()


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"VERSION={project['version']}" in DOCKERFILE.stage("runtime").values("ARG")
    assert labels("cpu")["org.opencontainers.image.version"] == "${VERSION}"
    assert labels("cpu")["org.opencontainers.image.licenses"] == project["license"]


def test_copied_paths_exist_and_are_in_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert [line for line in lines if line[:1] not in "!#"] == ["*", "**/__pycache__"]
    copies = [each for stage in DOCKERFILE.stages for each in stage.instructions if each.name == "COPY"]
    sources = {word for each in copies if "--from" not in each.value for word in each.words[:-1]}
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists()
        assert any(Path(source).match(pattern) for pattern in allowed), source
