"""Archives of environments: extracted once, safely, and only onto a disk with room."""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.core.backends.python.environment.environment_parts import archive_of, conda_folder
from trident.core.backends.python.environment import extracted
from trident.core.errors import ModelLoadFailed, RepositoryUnavailable


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return archive_of(conda_folder(tmp_path / "made"), tmp_path / "env.tar.gz")


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


def archive_with(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for each in members:
            tar.addfile(each, io.BytesIO(b"x" * each.size))
    return path


def folders(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir() if entry.is_dir())


def test_an_archive_is_extracted_with_its_modes_and_links(tmp_path: Path, cache: Path) -> None:
    made = conda_folder(tmp_path / "made")
    (made / "bin" / "python3").symlink_to("python")
    folder = extracted(archive_of(made, tmp_path / "env.tar.gz"), cache)
    assert os.access(folder / "bin" / "python", os.X_OK)
    assert (folder / "bin" / "python3").resolve() == folder / "bin" / "python"
    assert (folder / "bin" / "activate").read_text() == (made / "bin" / "activate").read_text()


def test_loads_at_the_same_time_extract_once(archive: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: extracted(archive, cache), range(4)))
    (folder,) = found
    assert folders(cache) == [folder.name]
    (folder / "mark").touch()
    assert (extracted(archive, cache) / "mark").exists()


def test_a_changed_archive_is_extracted_again(archive: Path, cache: Path) -> None:
    first = extracted(archive, cache)
    later = archive.stat().st_mtime_ns + 1_000_000_000
    os.utime(archive, ns=(later, later))
    assert extracted(archive, cache) != first


@pytest.mark.parametrize(
    "members",
    [
        [member("../stolen", size=1)],
        [member("bin/../../stolen", size=1)],
        [member("link", tarfile.SYMTYPE, "../.."), member("link/stolen", size=1)],
        [member("link", tarfile.SYMTYPE, "/etc/passwd")],
        [member("link", tarfile.LNKTYPE, "../../secret")],
        [member("disk", tarfile.BLKTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
    ],
    ids=lambda members: members[0].name,
)
def test_no_member_leaves_the_folder(tmp_path: Path, cache: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ModelLoadFailed, match="failed to extract the environment"):
        extracted(archive_with(tmp_path / "evil.tar.gz", member("bin/activate", size=1), *members), cache)
    assert not list(tmp_path.rglob("stolen"))
    assert folders(cache) == []


def test_an_absolute_name_stays_in_the_folder(tmp_path: Path, cache: Path) -> None:
    target = tmp_path / "elsewhere" / "stolen"
    folder = extracted(archive_with(tmp_path / "evil.tar.gz", member(str(target), size=1)), cache)
    assert not target.exists()
    assert (folder / str(target).lstrip("/")).read_text() == "x"


def test_a_disk_without_room_ends_the_extraction(tmp_path: Path, cache: Path) -> None:
    rooms = iter([1 << 30, (64 << 20) + 5])
    archive = archive_with(tmp_path / "large.tar.gz", member("first", size=100), member("second", size=6))
    with pytest.raises(ModelLoadFailed, match=r"no space left on the disk of .*: 'second' needs 6 bytes, 5 are free"):
        extracted(archive, cache, free=lambda folder: next(rooms))
    assert folders(cache) == []


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\x1f\x8b\x08\x00broken"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, cache: Path, content: bytes) -> None:
    path = tmp_path / "env.tar.gz"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed, match=f"failed to extract the environment '{path}'"):
        extracted(path, cache)


def test_a_truncated_archive_leaves_nothing(archive: Path, cache: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(ModelLoadFailed, match="failed to extract the environment"):
        extracted(archive, cache)
    assert folders(cache) == []


def test_a_cache_that_others_can_write_to_is_refused(archive: Path, cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(RepositoryUnavailable, match="others can write to"):
        extracted(archive, cache)
