"""Counts of several processes; test_shared_request_metrics.py has them on the page of real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.core.http.counts import TABLE_BYTES, Answer, ResponseCounts, SharedResponseCounts

PING = Answer("GET", "/ping", 200)


def test_the_counts_of_other_processes_are_read(tmp_path: Path) -> None:
    other = bytearray(TABLE_BYTES)
    ResponseCounts(other).add(*PING)
    (tmp_path / "responses_1.table").write_bytes(other)
    (tmp_path / "counter_1.db").write_bytes(b"of the metrics library")
    shared = SharedResponseCounts(tmp_path)
    shared.counts.add(*PING)
    assert list(shared.items()) == [(PING, 1), (PING, 1)]


def test_counts_are_in_the_file_at_once(tmp_path: Path) -> None:
    SharedResponseCounts(tmp_path).counts.add(*PING)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 >= TABLE_BYTES
    assert dict(ResponseCounts(bytearray(path.read_bytes())).items()) == {PING: 1}


def test_a_process_with_the_pid_of_an_ended_one_continues_its_counts(tmp_path: Path) -> None:
    for _ in range(2):
        SharedResponseCounts(tmp_path).counts.add(*PING)
    assert list(SharedResponseCounts(tmp_path).items()) == [(PING, 2)]


def test_without_room_a_process_counts_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    shared = SharedResponseCounts(tmp_path)
    shared.counts.add(*PING)
    assert list(shared.items()) == [(PING, 1)]
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in caplog.text
