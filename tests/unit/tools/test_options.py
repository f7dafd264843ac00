"""The options of the cache of models that several commands have."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.common.options import BadOption
from trident.tools.options import CloudCache, read_cloud_cache

VARIABLES = {"TRIDENT_MODEL_CACHE_DIRECTORY": "/cache", "TRIDENT_MODEL_CACHE_BYTES": "5"}
MOUNTS = {"TRITON_AWS_MOUNT_DIRECTORY": "", "TRITON_GCS_MOUNT_DIRECTORY": "/mnt"}


def test_options_override_variables_which_override_the_mount() -> None:
    assert read_cloud_cache({}, MOUNTS).directory == "/mnt/trident"
    assert read_cloud_cache({}, MOUNTS | VARIABLES).directory == "/cache"
    given = {"model-cache-directory": "/mine", "model-cache-bytes": 0}
    assert read_cloud_cache(given, VARIABLES) == CloudCache(directory="/mine", max_bytes=0)
    assert read_cloud_cache({"model-cache-bytes": None}, VARIABLES) == CloudCache(directory="/cache", max_bytes=5)
    with pytest.raises(BadOption, match="TRIDENT_MODEL_CACHE_BYTES"):
        read_cloud_cache({}, {"TRIDENT_MODEL_CACHE_BYTES": "much"})


def test_default_cache_is_in_the_home_of_the_user_and_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = read_cloud_cache({}, {"TRITON_CLOUD_CREDENTIAL_PATH": "/keys"})
    assert (found.path, found.max_bytes, found.credential_path) == (tmp_path / ".cache" / "trident", 64 << 30, "/keys")
    assert list(tmp_path.iterdir()) == []
