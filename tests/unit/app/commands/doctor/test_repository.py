from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from trident.app.commands.doctor.report import Level, Line
from trident.app.commands.doctor.repository import (
    CacheReading,
    RepositoryReading,
    read_cache,
    read_repository,
    repository_lines,
    room_lines,
)
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings
from trident.core.repository.location import parse_location
from trident.core.repository.sources import SourceFile

CLOUD = parse_location("s3://bucket/models")
FILES = (
    SourceFile("config.pbtxt", 10, "a"),
    SourceFile("1/model.onnx", 100, "b"),
    SourceFile("2/model.onnx", 1000, "c"),
    SourceFile("old/model.onnx", 5, "d"),
)
READING = RepositoryReading(location=CLOUD, models={"m": FILES})
CACHE = CacheReading(directory="/cache", max_bytes=0, used=0, free=1 << 20)


def settings(folder: Path, *options: str) -> ServerSettings:
    return read_settings([f"--model-repository={folder}", f"--model-cache-directory={folder}-cache", *options], {})


def line(reading: RepositoryReading, check: str) -> Line:
    return next(each for each in repository_lines(reading) if each.check == check)


def test_models_are_counted_and_an_unreadable_or_empty_repository_is_told() -> None:
    assert line(READING, "models").text == "1 model, 2 versions, 1.09 KiB"
    assert READING.load_bytes == 1015
    (found,) = repository_lines(RepositoryReading(location=CLOUD, failure="no such folder", hint="make it"))
    assert (found.level, found.text, found.cure) == (Level.FAILED, "no such folder", "make it")
    found = line(replace(READING, models={}), "models")
    assert found.level is Level.WARNING
    assert "expected MODEL/1/model.onnx" in found.cure


def test_folders_that_are_ignored_or_no_models_are_named() -> None:
    docs = (SourceFile("README", 1, "a"),)
    reading = replace(READING, models={"m": FILES, "docs": docs}, ignored=["code"])
    assert line(reading, "ignored").text.startswith("code: ")
    assert line(reading, "no models").text.startswith("docs: ")
    assert line(reading, "no versions").text.startswith("m/old: ")
    assert len(repository_lines(reading)) == 4


def test_refused_models_fail_with_the_command_that_shows_more() -> None:
    found = line(replace(READING, refused=1), "validation")
    assert (found.level, found.text) == (Level.FAILED, "1 model of 1 would be refused")
    assert found.cure == "trident validate s3://bucket/models"
    assert line(replace(READING, refused=1, must_load=False), "validation").level is Level.WARNING
    assert line(replace(READING, refused=0), "validation").level is Level.OK


def test_models_above_the_free_memory_are_a_warning() -> None:
    (found,) = room_lines([READING], 1015, None)
    assert found.level is Level.OK
    (found,) = room_lines([READING], 1014, None)
    assert found.level is Level.WARNING
    assert room_lines([READING], None, None) == []


def test_a_disk_that_is_too_small_for_the_cache_fails() -> None:
    assert room_lines([READING], None, CACHE)[0].level is Level.OK
    assert room_lines([READING], None, replace(CACHE, free=1000))[0].level is Level.FAILED
    assert room_lines([READING], None, replace(CACHE, free=1000, used=15))[0].level is Level.OK
    assert "--model-cache-bytes" in room_lines([READING], None, replace(CACHE, max_bytes=1000))[0].cure


def test_a_local_repository_is_scanned_and_validated(shipped_models: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(shipped_models, repository)
    good = read_repository(parse_location(str(repository)), settings(repository))
    assert (good.refused, good.ignored, good.must_load) == (0, [], True)
    (repository / "asks").mkdir()
    (repository / "asks" / "config.pbtxt").write_text("instance_group [{ kind: KIND_GPU }]")
    bad = read_repository(parse_location(str(repository)), settings(repository, "--exit-on-error=false"))
    assert (bad.refused, bad.asking_for_gpu, bad.must_load) == (1, ["asks"], False)
    assert len(bad.models) == len(good.models) + 1


def test_a_single_model_is_not_taken_for_a_repository(shipped_models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "simple"
    shutil.copytree(shipped_models / "simple", folder)
    reading = read_repository(parse_location(str(folder)), settings(folder, "--single-model=other"))
    assert (list(reading.models), reading.is_single, reading.ignored, reading.refused) == (["other"], True, [], None)
    assert "without a repository around it" in line(reading, "models").text


def test_a_missing_folder_is_a_failure(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    reading = read_repository(parse_location(str(missing)), settings(missing))
    assert reading.failure == "repository path is not a valid directory"


def test_the_cache_is_read_without_being_made(tmp_path: Path) -> None:
    reading = read_cache(settings(tmp_path / "models"))
    assert reading.used == 0
    assert reading.free > 0
    assert not Path(reading.directory).exists()
