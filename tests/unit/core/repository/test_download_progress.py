"""The counters of downloads and their log lines."""

from __future__ import annotations

import contextlib
import logging

import pytest

from trident.core.repository.progress import DownloadProgress, DownloadSnapshot, size_text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> DownloadProgress:
    return DownloadProgress(clock)


def test_snapshot_is_empty_at_first(progress: DownloadProgress) -> None:
    assert progress.snapshot() == DownloadSnapshot()


def test_download_is_counted_and_logged(
    progress: DownloadProgress, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trident.repository")
    with progress.download("m", "model 'm' version 1", 5, 3, 3_000_000) as download:
        download.received(1_000_000)
        download.discarded(1_000_000)
        download.received(1_000_000)
        clock.now += 2
        download.received(500_000)
        download.finished()
        download.retried()
        assert progress.snapshot() == DownloadSnapshot(
            True, ("m",), 1_500_000, 3_000_000, 1, 3, 2.0, 2_500_000, 1, 5, 1, 2.0
        )
        assert caplog.messages == []
        clock.now += 3
        download.received(500_000)
        assert caplog.messages == ["downloading model 'm': 2.0 MB of 3.0 MB, 1 of 3 objects, 5 s"]
        download.received(1_000_000)
        download.finished()
        download.finished()
    assert caplog.messages[1:] == [
        "downloaded model 'm' version 1: 3 objects, 3.0 MB in 5.0 s (800 kB/s), 5 from the cache"
    ]
    clock.now += 10
    after = progress.snapshot()
    assert after == DownloadSnapshot(
        bytes_downloaded_total=4_000_000,
        objects_downloaded_total=3,
        cache_hits_total=5,
        retries_total=1,
        seconds_total=5.0,
    )


def test_overlapping_downloads_are_counted_together(progress: DownloadProgress, clock: Clock) -> None:
    """A finished download counts until the last one ends. A failed one does not, as its bytes will never arrive."""
    with progress.download("a", "model 'a'", 0, 1, 10):
        with progress.download("b", "model 'b'", 0, 1, 20) as second:
            second.received(20)
            second.finished()
        with contextlib.suppress(ValueError), progress.download("c", "model 'c'", 0, 1, 40):
            assert progress.snapshot().models == ("a", "c")
            raise ValueError
        seen = progress.snapshot()
        assert (seen.models, seen.bytes_done, seen.bytes_total, seen.objects_done) == (("a",), 20, 30, 1)
    assert not progress.snapshot().active


def test_model_in_the_cache_counts_as_hits(progress: DownloadProgress, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trident.repository")
    progress.found("model 'm' version 2", 4)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "model 'm' version 2 is in the cache: 4 objects")
    ]
    assert progress.snapshot().cache_hits_total == 4


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (9_960, "10 kB"),
        (999_600, "1.0 MB"),
        (1 << 30, "1.1 GB"),
        (10**16, "10000 TB"),
    ],
)
def test_size_text_has_decimal_units(size: int, text: str) -> None:
    assert size_text(size) == text
