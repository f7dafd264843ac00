from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trident.app.emulators.report import Interrupted
from trident.app.emulators.sagemaker.archives import unpack
from trident.core.errors import ConfigInvalid

PLENTY = 1 << 30
Write = Callable[[tarfile.TarFile], None]


def file(name: str, content: bytes = b"x") -> Write:
    def write(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = 0o6777
        tar.addfile(member, io.BytesIO(content))

    return write


def special(name: str, kind: bytes, target: str = "") -> Write:
    def write(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = target
        tar.addfile(member)

    return write


def symlink(name: str, target: str) -> Write:
    return special(name, tarfile.SYMTYPE, target)


def archived(folder: Path, *members: Write, form: int = tarfile.PAX_FORMAT) -> Path:
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz", format=form) as tar:
        for write in members:
            write(tar)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "target"
    folder.mkdir(parents=True)
    return folder


def everything_around(target: Path) -> list[str]:
    """The files and folders beside the target."""
    return [path.name for path in target.parent.iterdir() if path != target]


def test_folders_files_and_inner_links_are_unpacked_read_only(tmp_path: Path, target: Path) -> None:
    made = archived(
        tmp_path,
        special("./", tarfile.DIRTYPE),
        file("./model/1/model.onnx", b"weights"),
        file("./model/config.pbtxt", b"config"),
        special("./model/empty", tarfile.DIRTYPE),
        symlink("./model/2", "1"),
        symlink("./model/3/model.onnx", "../1/model.onnx"),
        special("./copy.onnx", tarfile.LNKTYPE, "./model/1/model.onnx"),
    )
    unpack(made, target, PLENTY)
    for path in ("model/1/model.onnx", "model/2/model.onnx", "model/3/model.onnx", "copy.onnx"):
        assert (target / path).read_bytes() == b"weights"
    assert (target / "model" / "empty").is_dir()
    assert not [path for path in [target, *target.rglob("*")] if not path.is_symlink() and path.stat().st_mode & 0o7222]


def test_the_later_of_two_members_with_the_same_name_wins(tmp_path: Path, target: Path) -> None:
    unpack(archived(tmp_path, file("a", b"old"), file("a", b"new")), target, PLENTY)
    assert (target / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([file("../beside")], "'../beside' lies outside"),
        ([file("a/../../beside")], "lies outside"),
        ([file("/etc/trident-was-here")], "lies outside"),
        ([symlink("a", "/etc")], "link 'a' leads out"),
        ([symlink("a", "../..")], "link 'a' leads out"),
        ([symlink("a", ".."), file("a/beside")], "cannot unpack"),
        ([symlink("a", ".."), symlink("a/beside", "x")], "'a/beside' lies behind a link"),
        # Each of these links stays within the folder, but their combination leads out.
        ([symlink("d/e/s", ".."), symlink("b", "d/e/s/../..")], "link 'b' leads out"),
        ([symlink("b", "s/.."), symlink("s", ".")], "link 'b' leads out"),
        ([symlink("a", "b"), symlink("b", "a")], "leads out"),
        ([special("a", tarfile.LNKTYPE, "../../model.tar.gz")], "lies outside"),
        ([special("a", tarfile.LNKTYPE, "nothing")], "'a' is not to a file"),
        ([symlink("s", "/etc/hostname"), special("a", tarfile.LNKTYPE, "s")], "'a' is not to a file"),
        ([special("pipe", tarfile.FIFOTYPE)], "'pipe' is a device or a pipe"),
        ([special("disk", tarfile.BLKTYPE)], "'disk' is a device or a pipe"),
        ([file("a\nb/../../c")], r"'a\nb/../../c'"),
    ],
)
def test_members_that_leave_the_folder_are_refused(
    tmp_path: Path, target: Path, members: list[Write], text: str
) -> None:
    with pytest.raises(ConfigInvalid) as refusal:
        unpack(archived(tmp_path, *members), target, PLENTY)
    assert text in refusal.value.message
    assert everything_around(target) == []
    assert not os.path.exists("/etc/trident-was-here")


def test_bytes_over_the_limit_are_refused_before_they_are_written(tmp_path: Path, target: Path) -> None:
    made = archived(tmp_path, file("a", bytes(60)), file("b", bytes(41)))
    with pytest.raises(ConfigInvalid, match="unpacks to more than 100 bytes"):
        unpack(made, target, 100)
    assert sum(path.stat().st_size for path in target.iterdir()) <= 100


def test_the_size_in_the_header_refuses_a_bomb(tmp_path: Path, target: Path) -> None:
    member = tarfile.TarInfo("zeros")
    member.size = 1 << 40
    (tmp_path / "model.tar.gz").write_bytes(gzip.compress(member.tobuf()))
    with pytest.raises(ConfigInvalid, match="unpacks to more than"):
        unpack(tmp_path / "model.tar.gz", target, PLENTY)


def test_a_header_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path, target: Path) -> None:
    member = tarfile.TarInfo("././@LongLink")
    member.type = tarfile.GNUTYPE_LONGNAME
    member.size = 1 << 33
    (tmp_path / "model.tar.gz").write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(ConfigInvalid, match="a header of"):
        unpack(tmp_path / "model.tar.gz", target, PLENTY)


def test_too_many_members_are_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ConfigInvalid, match="more than 2 members"):
        unpack(archived(tmp_path, file("a"), file("b"), file("c")), target, PLENTY, 2)


@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"no archive either" * 100, mtime=0)])
def test_other_files_are_refused(tmp_path: Path, target: Path, content: bytes) -> None:
    (tmp_path / "model.tar.gz").write_bytes(content)
    with pytest.raises(ConfigInvalid) as refusal:
        unpack(tmp_path / "model.tar.gz", target, PLENTY)
    assert "model.tar.gz" in refusal.value.message
    assert "tar -czf" in (refusal.value.hint or "")


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_unpacking_can_be_stopped_between_files_and_within_one(tmp_path: Path, target: Path, looks: int) -> None:
    made = archived(tmp_path, file("small"), file("large", bytes(3 << 20)), file("last"))
    left = iter([False] * looks)
    with pytest.raises(Interrupted):
        unpack(made, target, PLENTY, is_stopped=lambda: next(left, True))
    assert not (target / "last").exists()
    assert (target / "small").exists() == (looks > 0)
    assert (target / "large").exists() == (looks > 1)


def test_a_truncated_archive_is_refused(tmp_path: Path, target: Path) -> None:
    made = archived(tmp_path, file("a", os.urandom(100_000)))
    made.write_bytes(made.read_bytes()[:50_000])
    with pytest.raises(ConfigInvalid, match=r"not a \.tar\.gz archive"):
        unpack(made, target, PLENTY)
