from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import CloudCache, read_cloud_cache, read_settings, with_repositories
from trident.app.settings.server import ServerSettings, cache_directory

REPOSITORY = "--model-repository=/models"


def settings(*arguments: str, **environ: str) -> ServerSettings:
    return read_settings([REPOSITORY, *arguments], environ)


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDENT_ID", "from the process")
    assert read_settings([REPOSITORY]).server_id == "from the process"


def test_metrics_settings_are_read_by_their_names() -> None:
    found = settings("--metrics-config=counter_latencies=false", "--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01")
    assert found.metrics_settings == {"counter_latencies": "false", "summary_quantiles": "0.5:0.05,0.9:0.01"}
    found = settings(TRIDENT_METRICS_CONFIG="summary_latencies=true;histogram_latencies=false")
    assert found.metrics_settings == {"summary_latencies": "true", "histogram_latencies": "false"}
    assert found.without_effect == ()
    with pytest.raises(BadOption, match="--metrics-config option format is"):
        settings("--metrics-config=counter_latencies")


def test_words_are_repositories_beside_options_of_every_kind() -> None:
    arguments = ["/models", "--http-port", "9", "--buffer-manager-thread-count=2", "s3://bucket"]
    assert with_repositories(arguments) == [
        "--http-port=9",
        "--buffer-manager-thread-count=2",
        "--model-repository=/models",
        "--model-repository=s3://bucket",
    ]


def test_a_repository_may_be_left_out_where_it_is_not_needed() -> None:
    assert read_settings(["--http-port=1"], {}, needs_repository=False).model_repository == ()
    with pytest.raises(BadOption, match="--model-repository must be specified"):
        read_settings(["--http-port=1"], {})


VARIABLES = {"TRIDENT_MODEL_CACHE_DIRECTORY": "/cache", "TRIDENT_MODEL_CACHE_BYTES": "5"}
MOUNTS = {"TRITON_AWS_MOUNT_DIRECTORY": "", "TRITON_GCS_MOUNT_DIRECTORY": "/mnt"}


def test_what_is_given_overrides_the_variables() -> None:
    given = {"model-cache-directory": "/mine", "model-cache-bytes": 0}
    assert read_cloud_cache(given, VARIABLES) == CloudCache(directory="/mine", max_bytes=0)
    assert read_cloud_cache({"model-cache-bytes": None}, VARIABLES) == CloudCache(directory="/cache", max_bytes=5)


def test_the_cache_is_in_the_directory_that_is_mounted_for_triton() -> None:
    assert read_cloud_cache({}, MOUNTS).directory == "/mnt/trident"
    assert read_cloud_cache({}, MOUNTS | VARIABLES).directory == "/cache"
    assert cache_directory("/mnt/models") == "/mnt/models/trident"


def test_the_default_is_that_of_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = read_cloud_cache({}, {"TRITON_CLOUD_CREDENTIAL_PATH": "/keys"})
    assert (found.path, found.max_bytes, found.credential_path) == (tmp_path / ".cache" / "trident", 64 << 30, "/keys")


def test_a_bad_size_in_the_variable_is_refused() -> None:
    with pytest.raises(BadOption, match="TRIDENT_MODEL_CACHE_BYTES"):
        read_cloud_cache({}, {"TRIDENT_MODEL_CACHE_BYTES": "much"})


def test_the_cache_is_in_the_home_of_the_user_and_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("") == str(tmp_path / ".cache" / "trident")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/nowhere/at/all", "relative", "/dev/null"])
def test_the_cache_is_among_the_temporary_files_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert cache_directory("") == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))


@pytest.mark.skipif(os.getuid() == 0, reason="root can write in every folder")
def test_the_cache_is_among_the_temporary_files_when_the_home_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("") == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))
