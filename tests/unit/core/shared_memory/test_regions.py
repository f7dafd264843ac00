"""The registry of regions."""

from __future__ import annotations

import gc
import mmap
import os
import resource
from collections.abc import Iterator

import pytest

from tests.unit.core.cuda.fake_cuda import FakeCuda
from tests.unit.shared_memory_object import path_of, shared_memory_object
from trident.core.cuda.driver import CudaDriver
from trident.core.errors import InvalidRequest, RegionExists, RegionFailed, RegionNotFound
from trident.core.inference.response import RegionReference
from trident.core.shared_memory import regions as module
from trident.core.shared_memory.regions import RegionKind, Regions, SystemRegion

PAGE = mmap.ALLOCATIONGRANULARITY
MOST = 2**64 - 1


@pytest.fixture
def key() -> Iterator[str]:
    with shared_memory_object(2 * PAGE, b"abcdefgh") as found:
        yield found


@pytest.fixture
def regions() -> Regions:
    return Regions()


def names(regions: Regions) -> list[str]:
    return [each.name for each in regions.system_regions("")]


def open_files() -> int:
    gc.collect()  # errors of other tests may still hold some
    return len(os.listdir("/proc/self/fd"))


def test_regions_are_shown_by_name(regions: Regions, key: str) -> None:
    regions.register_system("b", key, PAGE, PAGE)
    regions.register_system("a", key, 0, 2 * PAGE)
    first = SystemRegion(name="a", key=key, offset=0, byte_size=2 * PAGE)
    second = SystemRegion(name="b", key=key, offset=PAGE, byte_size=PAGE)
    assert regions.system_regions("") == [first, second]
    assert regions.system_regions("b") == [second]
    assert regions.cuda_regions("") == []
    with pytest.raises(RegionNotFound, match=r"^Unable to find system shared memory region: 'c'$"):
        regions.system_regions("c")
    with pytest.raises(RegionNotFound, match=r"^Unable to find cuda shared memory region: 'c'$"):
        regions.cuda_regions("c")
    text = r"^The region named 'a' is registered as system shared memory, not CUDA shared memory$"
    with pytest.raises(RegionNotFound, match=text):
        regions.cuda_regions("a")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "cannot register shared memory region 'r' - invalid shm key ''"),
        ("//", "cannot register shared memory region 'r' - invalid shm key '//'"),
        (
            "//triton_python_backend_shm_region_7",
            "cannot register shared memory region 'r' with key '//triton_python_backend_shm_region_7' as the key "
            "contains the reserved prefix 'triton_python_backend_shm_region_'",
        ),
    ],
)
def test_a_key_that_names_nothing_of_clients_is_refused(regions: Regions, given: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        regions.register_system("r", given, 0, 8)
    assert refusal.value.message == text


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (0, 2 * PAGE + 1, "invalid args"),
        (2 * PAGE, 1, "invalid args"),
        (2**63, 2**63, "invalid args"),
        (MOST, MOST, "invalid args"),
        (1, PAGE, "unable to process address spaceInvalid argument"),
        (0, 0, "unable to process address spaceInvalid argument"),
        (2 * PAGE, 0, "unable to process address spaceInvalid argument"),
    ],
)
def test_a_range_outside_the_object_is_refused(
    regions: Regions, key: str, offset: int, byte_size: int, text: str
) -> None:
    before = open_files()
    with pytest.raises(InvalidRequest) as refusal:
        regions.register_system("r", key, offset, byte_size)
    assert refusal.value.message == f"failed to register shared memory region 'r': {text}"
    assert names(regions) == []
    del refusal
    assert open_files() == before


def test_a_name_is_registered_once(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, PAGE)
    for other in (key, "/none"):  # the name is looked at first
        with pytest.raises(RegionExists, match=r"^shared memory region 'r' already in manager$"):
            regions.register_system("r", other, 0, PAGE)
    with pytest.raises(RegionFailed, match=r"^Unable to open shared memory region: '/none'$"):
        regions.register_system("s", "/none", 0, PAGE)
    library = FakeCuda()
    both = Regions(open_driver=lambda: CudaDriver(library))
    both.register_system("r", key, 0, PAGE)
    with pytest.raises(RegionExists, match=r"^shared memory region 'r' already in manager$"):
        both.register_cuda("r", library.allocate(b"x"), 0, 1)


def test_one_or_all_are_unregistered(regions: Regions, key: str) -> None:
    before = open_files()
    for name in "abc":
        regions.register_system(name, key, 0, PAGE)
    assert open_files() == before + 1  # several regions in one object
    regions.unregister(RegionKind.SYSTEM, "unknown")
    regions.unregister(RegionKind.CUDA, "a")
    regions.unregister(RegionKind.CUDA, "")
    assert names(regions) == ["a", "b", "c"]
    regions.unregister(RegionKind.SYSTEM, "b")
    assert names(regions) == ["a", "c"]
    regions.unregister(RegionKind.SYSTEM, "")
    assert names(regions) == []
    assert open_files() == before


def test_a_region_in_use_leaves_with_its_last_user(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, PAGE)
    place = RegionReference("r", 0, 8)
    first = regions.use([place, place])
    regions.unregister(RegionKind.SYSTEM, "")
    second = regions.use([place])
    assert names(regions) == ["r"]
    with pytest.raises(RegionExists):
        regions.register_system("r", key, 0, PAGE)
    regions.release([region for region, _ in first])
    assert names(regions) == ["r"]
    regions.release([region for region, _ in second])
    assert names(regions) == []
    regions.register_system("r", key, 0, PAGE)
    regions.release([region for region, _ in regions.use([place])])
    assert names(regions) == ["r"]


def test_a_place_is_looked_up_in_its_region(regions: Regions, key: str) -> None:
    regions.register_system("r", key, PAGE, PAGE)
    ((region, start),) = regions.use([RegionReference("r", 16, PAGE - 16)])
    assert (region.users, start) == (1, PAGE + 16)
    for place, text in [
        (RegionReference("x", 0, 1), "Unable to find shared memory region: 'x'"),
        (RegionReference("r", PAGE, 0), "Invalid offset for shared memory region: 'r'"),
        (RegionReference("r", MOST, 8), "Invalid offset for shared memory region: 'r'"),
        (RegionReference("r", 1, PAGE), "Invalid offset + byte size for shared memory region: 'r'"),
        (
            RegionReference("r", 8, MOST),
            f"Integer overflow detected: byte_size ({MOST}) + offset (8) exceeds maximum value ({MOST}) for region 'r'",
        ),
    ]:
        with pytest.raises((InvalidRequest, RegionNotFound)) as refusal:
            regions.use([RegionReference("r", 0, 8), place])
        assert refusal.value.message == text
    assert region.users == 1  # a use is of all places, or of none


def test_regions_and_open_objects_are_bounded(regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REGIONS", 3)
    for name in "abc":
        regions.register_system(name, key, 0, PAGE)
    with pytest.raises(InvalidRequest, match=r"^failed to register shared memory region 'd': 3 regions are registered"):
        regions.register_system("d", key, 0, PAGE)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4, 4))
    regions.unregister(RegionKind.SYSTEM, "a")
    regions.register_system("a", key, 0, PAGE)
    regions.unregister(RegionKind.SYSTEM, "a")
    before = open_files()
    with (
        shared_memory_object(8) as other,
        pytest.raises(InvalidRequest, match="'d': 1 objects of shared memory are open, a quarter of") as refusal,
    ):
        regions.register_system("d", other, 0, 8)
    assert "unregister regions" in (refusal.value.hint or "")
    del refusal
    assert open_files() == before


def test_ten_thousand_regions(regions: Regions, key: str) -> None:
    before = open_files()
    for number in range(10_000):
        regions.register_system(f"r{number:05}", key, PAGE * (number % 2), PAGE)
    assert open_files() == before + 1
    assert names(regions) == [f"r{number:05}" for number in range(10_000)]
    regions.unregister(RegionKind.SYSTEM, "")
    assert (names(regions), open_files()) == ([], before)


def test_an_object_under_an_old_key_is_another_one(regions: Regions, key: str) -> None:
    regions.register_system("old", key, 0, PAGE)
    path_of(key).unlink()
    path_of(key).write_bytes(b"ABCDEFGH" + bytes(PAGE))
    regions.register_system("new", key, 0, PAGE)
    used = regions.use([RegionReference("old", 0, 8), RegionReference("new", 0, 8)])
    assert [bytes(region.memory.view(start, 8)) for region, start in used] == [b"abcdefgh", b"ABCDEFGH"]
