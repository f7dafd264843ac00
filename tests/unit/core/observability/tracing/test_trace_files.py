from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from tests.unit.core.observability.tracing.traces import setting_of, trace_of
from trident.core.observability.tracing.files import TraceFiles
from trident.core.observability.tracing.settings import Setting
from trident.core.observability.tracing.trace import Loss, TraceCounts


def numbers(path: Path) -> list[int]:
    """The ids of the traces in a file, each once."""
    return list(dict.fromkeys(each["id"] for each in json.loads(path.read_text())))


def written(files: TraceFiles, setting: Setting, *ids: int) -> None:
    for number in ids:
        setting.sampler.sample()
        files.write([trace_of(number, setting)])


def test_one_file_has_all_traces_and_is_a_document_at_the_end(tmp_path: Path) -> None:
    counts = TraceCounts()
    files = TraceFiles(str(tmp_path / "t"), counts)
    assert list(tmp_path.iterdir()) == []
    setting = setting_of()
    written(files, setting, 1, 2)
    assert (tmp_path / "t").read_text().startswith('[{"id":1,')
    written(files, setting_of(), 3)
    files.finish(setting)
    files.close()
    assert numbers(tmp_path / "t") == [1, 2, 3]
    assert counts.metrics().written == 3


def test_files_are_numbered_whatever_setting_fills_them(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "t"), TraceCounts())
    pairs, triples = setting_of(frequency=2), setting_of(frequency=3)
    written(files, pairs, 1, 2, 3)
    written(files, triples, 4, 5, 6)
    files.finish(pairs)
    files.close()
    found = {path.name: numbers(path) for path in tmp_path.iterdir()}
    assert found == {"t.0": [1, 2], "t.1": [4, 5, 6], "t.2": [3]}


def test_the_last_of_a_count_of_traces_completes_a_file(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "t"), TraceCounts())
    setting = setting_of(count=3)
    written(files, setting, 1, 2)
    assert list(tmp_path.iterdir()) == []
    written(files, setting, 3)
    assert numbers(tmp_path / "t.0") == [1, 2, 3]
    unfinished = setting_of(count=3)
    written(files, unfinished, 4)
    files.finish(unfinished)
    files.close()
    assert numbers(tmp_path / "t") == [4]


def test_what_cannot_be_written_is_counted_logged_once_and_goes_on_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    counts = TraceCounts()
    folder = tmp_path / "later"
    files = TraceFiles(str(folder / "t"), counts)
    setting, numbered = setting_of(), setting_of(frequency=1)
    written(files, setting, 1, 2)
    written(files, numbered, 3)
    assert counts.metrics().lost[Loss.NOT_WRITTEN] == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No such file or directory" in caplog.text
    folder.mkdir()
    written(files, setting, 4)
    written(files, numbered, 5)
    files.close()
    assert (numbers(folder / "t"), numbers(folder / "t.0")) == ([4], [5])
    assert (counts.metrics().written, len(caplog.records)) == (2, 2)


def test_a_full_disk_loses_whole_traces(tmp_path: Path) -> None:
    counts = TraceCounts()
    path = tmp_path / "t"
    path.symlink_to("/dev/full")
    files = TraceFiles(str(path), counts)
    written(files, setting_of(), 1)
    files.close()
    assert counts.metrics().lost[Loss.NOT_WRITTEN] == 1


def test_what_a_full_disk_took_of_a_trace_is_cut_off(tmp_path: Path) -> None:
    counts = TraceCounts()
    files = TraceFiles(str(tmp_path / "t"), counts)
    setting = setting_of()
    written(files, setting, 1)
    room = (tmp_path / "t").stat().st_size + 50
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        written(files, setting, 2)
        assert (tmp_path / "t").stat().st_size == room
        written(files, setting_of(frequency=1), *range(3, 6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    written(files, setting, 6)
    files.close()
    assert numbers(tmp_path / "t") == [1, 6]
    assert (counts.metrics().written, counts.metrics().lost[Loss.NOT_WRITTEN]) == (5, 1)
