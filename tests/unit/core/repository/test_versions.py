"""Version directories and the version policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid
from trident.core.repository.repository import ModelDirectory, select_versions, version_directories, version_path


def test_numbered_directories_are_versions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("10", "2", "0", "003", "abc", "3_old", "-1", "٣", "9" * 30, "warmup", "initial_state", "configs"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").touch()
    directory = ModelDirectory("m", tmp_path)
    assert version_directories(directory) == [0, 2, 10]
    assert version_path(directory, 10) == tmp_path / "10"
    leading = "ignore version directory '003' which contains leading zeros in its directory name"
    assert leading in caplog.messages
    skipped = [message for message in caplog.messages if message.endswith("which fails to convert to integral number")]
    assert len(skipped) == 5
    assert "ignore version directory 'abc' which fails to convert to integral number" in skipped


def test_missing_directory_has_no_versions(tmp_path: Path) -> None:
    assert version_directories(ModelDirectory("m", tmp_path / "gone")) == []


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        ("latest { num_versions: 1 }", [10]),
        ("latest { num_versions: 2 }", [2, 10]),
        ("latest { num_versions: 9 }", [0, 2, 10]),
        ("latest {}", [10]),
        ("all {}", [0, 2, 10]),
        ("specific { versions: [ 2, 0 ] }", [0, 2]),
        ("", [0, 2, 10]),
    ],
)
def test_version_policy_selects_versions(policy: str, selected: list[int]) -> None:
    config = text_format.Parse(f"version_policy {{ {policy} }}", ModelConfig())
    assert select_versions(config, [2, 10, 0], "m") == selected


def test_missing_specific_version_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = text_format.Parse("version_policy { specific { versions: [ 1, 4 ] } }", ModelConfig())
    assert select_versions(config, [1], "m") == [1]
    assert caplog.messages == ["version 4 is specified for model 'm', but the version directory is not present"]


def test_empty_selection_is_an_error() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        select_versions(ModelConfig(), [], "m")
    assert caught.value.message == "at least one version must be available under the version policy of model 'm'"
