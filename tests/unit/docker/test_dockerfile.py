"""docker/Dockerfile: the requirements of the platforms, and the settings of its command."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from docker.lock import STAGES
from tests.project import ROOT
from trident.app.cli import main
from trident.app.settings.server import ServerSettings

# One line for each instruction.
TEXT = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", (ROOT / "docker" / "Dockerfile").read_text(), flags=re.M))
# The bases, and the instructions of each stage.
BASES = re.findall(r"^FROM (\S+) AS", TEXT, re.M)
STAGE_TEXTS = {
    name: text.splitlines() for name, text in re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", TEXT, re.M | re.S)
}
RUNTIME = STAGE_TEXTS["runtime"]


def values(lines: list[str], instruction: str) -> list[str]:
    return [line.removeprefix(f"{instruction} ") for line in lines if line.startswith(f"{instruction} ")]


def pairs(lines: list[str], instruction: str) -> dict[str, str]:
    """The variables or labels that the instructions set."""
    return dict(re.findall(r'([\w.-]+)=("[^"]*"|\S+)', " ".join(values(lines, instruction))))


def test_images_are_built_from_a_pinned_base() -> None:
    assert re.search(r"^ARG BASE_IMAGE=docker\.io/library/python:3\.11\.\d+-slim-bookworm$", TEXT, re.M)
    assert {base for base in BASES if base not in STAGE_TEXTS} == {"${BASE_IMAGE}"}
    assert list(STAGE_TEXTS)[-1] == "cpu"


# Of the stage gpu12, 13 is what CUDA is by default.
@pytest.mark.parametrize(("image", "stage"), [("cpu", "cpu"), ("gpu", "gpu${CUDA#13}")])
def test_image_takes_the_environment_that_its_own_build_stage_made(image: str, stage: str) -> None:
    assert values(STAGE_TEXTS[image], "COPY") == [f"--from=build-{image} /opt/trident /opt/trident"]
    build = STAGE_TEXTS[f"build-{image}"]
    runs = " ".join(values(build, "RUN")).replace('"', "")
    assert f"requirements-{stage}.lock" in runs
    assert f"docker/extras/install.sh /opt/trident {stage} ${{EXTRAS}}" in runs
    assert {"EXTRAS", "PIP_EXTRA_INDEX_URL"} <= set(values(build, "ARG"))
    copied = " ".join(values(build, "COPY"))
    assert all(f"docker/requirements-{each}.lock " in copied for each in STAGES if each.startswith(image))


def test_images_have_no_compiler_no_pip_and_no_package_lists() -> None:
    # That of the base image.
    removed = "rm -rf /usr/local/bin/pip* /usr/local/lib/python3*/site-packages/*"
    assert removed in " ".join(values(RUNTIME, "RUN"))
    for name in ("runtime", "cpu", "gpu"):
        runs = " ".join(values(STAGE_TEXTS[name], "RUN")).replace(removed, "")
        assert not re.search(r"apt-get|gcc|pip|curl|wget", runs)


def test_images_have_the_labels_of_the_platforms() -> None:
    found = pairs(RUNTIME, "LABEL")
    prefix = "com.amazonaws.sagemaker.capabilities."
    assert {name for name, value in found.items() if value == '"true"'} == {
        prefix + "multi-models",
        prefix + "accept-bind-to-port",
        prefix + "bidirectional-streaming",
    }
    opencontainers = {name.rpartition(".")[2] for name in found if name.startswith("org.opencontainers.image.")}
    assert opencontainers == {"title", "description", "licenses", "version", "revision"}
    assert values(RUNTIME, "EXPOSE") == ["8000 8001 8002 8080"]
    assert values(RUNTIME, "USER") == ["1000:1000"]


def test_images_set_no_variable_that_overrides_a_platform() -> None:
    variables = pairs([*RUNTIME, *STAGE_TEXTS["cpu"], *STAGE_TEXTS["gpu"]], "ENV")
    assert not [name for name in variables if name.startswith(("TRIDENT_", "SAGEMAKER_", "AIP_"))]
    assert pairs(RUNTIME, "ENV")["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    # Only the GPU image requests the driver.
    assert pairs(STAGE_TEXTS["gpu"], "ENV") == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    }


@pytest.mark.parametrize("arguments", [["serve"], ["--http-port=7000"], ["serve", "--http-port=7000"]], ids=" ".join)
def test_image_serves_with_the_arguments_of_each_platform(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (values(RUNTIME, "ENTRYPOINT"), values(RUNTIME, "CMD")) == (['["trident"]'], ['["serve"]'])
    assert values(RUNTIME, "HEALTHCHECK")[0].endswith('CMD ["python", "/opt/trident/healthcheck.py"]')
    monkeypatch.setenv("TRIDENT_MODEL_REPOSITORY", "/models")
    served: list[ServerSettings] = []
    assert main(arguments, serve=lambda settings: served.append(settings) or 0) == 0
    assert [each.http_port for each in served] == [7000 if "--http-port=7000" in arguments else 8000]


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"VERSION={project['version']}" in values(RUNTIME, "ARG")
    labels = pairs(RUNTIME, "LABEL")
    assert labels["org.opencontainers.image.version"] == '"${VERSION}"'
    assert labels["org.opencontainers.image.licenses"] == f'"{project["license"]}"'


def test_copied_paths_exist_and_are_in_the_build_context() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert [line for line in lines if line[:1] not in "!#"] == ["*", "**/__pycache__"]
    copies = [each.split() for stage in STAGE_TEXTS.values() for each in values(stage, "COPY")]
    sources = {word for words in copies if not words[0].startswith("--from") for word in words[:-1]}
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists()
        assert any(Path(source).match(pattern) for pattern in allowed), source
