"""Packages are checked before PyTorch sees them."""

from __future__ import annotations

import json
import platform
import zipfile
from pathlib import Path

import pytest

from tests.unit.backend_serving import config_of
from trident.core.backends.pytorch.packages import check_package, package_path
from trident.core.errors import ModelLoadFailed, RepositoryUnavailable


def package(path: Path, metadata: dict[str, str] | None = None, *, complete: bool = True) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        if complete:
            archive.writestr("model/archive_format", "pt2")
        if metadata is not None:
            archive.writestr("model/data/aotinductor/model/kernel_metadata.json", json.dumps(metadata))
    return path


@pytest.mark.parametrize("metadata", [None, {}, {"AOTI_MACHINE": platform.machine(), "AOTI_CPU_ISA": ""}])
def test_packages_for_this_machine_pass(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    check_package(package(tmp_path / "model.pt2", metadata), "model")


@pytest.mark.parametrize(
    ("metadata", "missing"),
    [({"AOTI_MACHINE": "vax"}, "vax"), ({"AOTI_CPU_ISA": "AVX9000 ALU"}, "avx9000, alu")],
)
def test_a_package_for_another_processor_is_refused(tmp_path: Path, metadata: dict[str, str], missing: str) -> None:
    path = package(tmp_path / "model.pt2", metadata)
    with pytest.raises(ModelLoadFailed, match=f"was compiled for a processor with {missing}, which this one has not"):
        check_package(path, "model")


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", b"PK\x03\x04"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed) as raised:
        check_package(path, "model")
    assert "'model.pt2' is not a package of torch.export or AOTInductor: " in raised.value.message
    assert raised.value.hint


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed) as raised:
        check_package(package(tmp_path / "model.pt2", complete=False), "model")
    assert "a pickle of torch.save is never loaded" in (raised.value.hint or "")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnavailable) as raised:
        package_path(tmp_path, config_of("", backend="pytorch"))
    assert raised.value.message == (
        f'PyTorch inductor model file "{tmp_path}/model.pt2" is unreachable or inaccessible.'
    )
