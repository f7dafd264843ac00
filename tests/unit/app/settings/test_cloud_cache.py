from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import CloudCache, read_cloud_cache

VARIABLES = {"TRIDENT_MODEL_CACHE_DIRECTORY": "/cache", "TRIDENT_MODEL_CACHE_BYTES": "5"}
MOUNTS = {"TRITON_AWS_MOUNT_DIRECTORY": "", "TRITON_GCS_MOUNT_DIRECTORY": "/mnt"}


def test_what_is_given_overrides_the_variables() -> None:
    given = {"model-cache-directory": "/mine", "model-cache-bytes": 0}
    assert read_cloud_cache(given, VARIABLES) == CloudCache(directory="/mine", max_bytes=0)
    assert read_cloud_cache({"model-cache-bytes": None}, VARIABLES) == CloudCache(directory="/cache", max_bytes=5)


def test_the_folder_of_tritons_copies_is_used_without_another() -> None:
    assert read_cloud_cache({}, MOUNTS).directory == "/mnt/trident"
    assert read_cloud_cache({}, MOUNTS | VARIABLES).directory == "/cache"


def test_the_default_is_that_of_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = read_cloud_cache({}, {"TRITON_CLOUD_CREDENTIAL_PATH": "/keys"})
    assert (found.path, found.max_bytes, found.credential_path) == (tmp_path / ".cache" / "trident", 64 << 30, "/keys")


def test_a_bad_size_in_the_variable_is_refused() -> None:
    with pytest.raises(BadOption, match="TRIDENT_MODEL_CACHE_BYTES"):
        read_cloud_cache({}, {"TRIDENT_MODEL_CACHE_BYTES": "much"})
