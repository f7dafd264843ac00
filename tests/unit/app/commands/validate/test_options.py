from __future__ import annotations

import pytest

from trident.adapters.common.options import BadOption
from trident.app.commands.validate import ValidateOptions, read_validate_options
from trident.app.settings.reading import CloudCache


def test_options_and_repositories_may_be_mixed() -> None:
    assert read_validate_options(["a", "--format", "json", "b", "--disable-auto-complete-config"]) == ValidateOptions(
        repositories=("a", "b"), format="json", auto_complete=False
    )
    assert read_validate_options(
        ["a", "--model-config-name=x", "--backend-config=k=v", "--backend-config=onnxruntime,k=w"]
    ) == ValidateOptions(repositories=("a",), config_name="x", backend_config=("k=v", "onnxruntime,k=w"))


def test_cache_is_that_of_serve() -> None:
    variables = {
        "TRIDENT_MODEL_CACHE_DIRECTORY": "/cache",
        "TRIDENT_MODEL_CACHE_BYTES": "5",
        "TRITON_CLOUD_CREDENTIAL_PATH": "/keys",
    }
    options = read_validate_options(["s3://bucket", "--model-cache-bytes=7"], variables)
    assert options.cache == CloudCache(directory="/cache", max_bytes=7, credential_path="/keys")
    mounted = read_validate_options(["s3://bucket"], {"TRITON_GCS_MOUNT_DIRECTORY": "/mnt"})
    assert mounted.cache.directory == "/mnt/trident"


@pytest.mark.parametrize("arguments", [[], ["a", "--format=xml"], ["a", "--http-port=1"], ["a", "--backend-config=x"]])
def test_a_bad_option_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOption):
        read_validate_options(arguments)
