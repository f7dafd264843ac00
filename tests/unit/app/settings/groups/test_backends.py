from __future__ import annotations

import pytest

from trident.adapters.common.options import BadValue
from trident.app.settings.groups import BACKEND_SETTING, BackendSettings, split_backend_settings


def test_backend_settings_are_split_by_backend_and_the_last_value_counts() -> None:
    texts = ["onnxruntime,threads=1", "default-max-batch-size=8", "onnxruntime,threads=2", "python,path=a=b,c"]
    assert split_backend_settings(texts) == {
        "onnxruntime": {"threads": "2"},
        "": {"default-max-batch-size": "8"},
        "python": {"path": "a=b,c"},
    }


def test_the_group_gives_its_backend_settings_by_backend() -> None:
    settings = BackendSettings(backend_config=("onnxruntime,a=b",), backend_directory="/backends").backend_settings
    assert settings == {"": {"backend-directory": "/backends"}, "onnxruntime": {"a": "b"}}


def test_the_setting_for_all_backends_names_the_directory_too() -> None:
    settings = BackendSettings(backend_config=("backend-directory=/mine",)).backend_settings
    assert settings == {"": {"backend-directory": "/mine"}}


@pytest.mark.parametrize("text", ["", "a", "a,b", ",a=b", "a,=b", "a,b=", "=b", "a="])
def test_a_malformed_backend_setting_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="--backend-config option format is"):
        BACKEND_SETTING.parse(text)
