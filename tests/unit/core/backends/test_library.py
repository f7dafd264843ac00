from __future__ import annotations

import pytest

from core.backends.base import Backend
from core.backends.library import find_backend
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid
from tests.unit.core.lifecycle.lifecycle_bench import FakeBackend

BACKENDS: dict[str, Backend] = {"fake": FakeBackend(), "other": FakeBackend()}


def config_of(backend: str, runtime: str = "") -> ModelConfig:
    return ModelConfig(name="m", backend=backend, runtime=runtime)


@pytest.mark.parametrize("name", ["fake", "other"])
def test_a_backend_is_found_by_its_name_and_its_own_library(name: str) -> None:
    assert find_backend(BACKENDS, config_of(name)) is BACKENDS[name]
    assert find_backend(BACKENDS, config_of(name, f"libtriton_{name}.so")) is BACKENDS[name]


@pytest.mark.parametrize(
    ("backend", "runtime", "message"),
    [
        (
            "none",
            "",
            "unable to find backend library for backend 'none', try specifying runtime on the model configuration.",
        ),
        ("none", "libtriton_none.so", "unable to find backend library 'libtriton_none.so' for model 'm'"),
        ("none", "libtriton_fake.so", "unable to find backend library 'libtriton_fake.so' for model 'm'"),
        ("fake", "libtriton_other.so", "unable to find backend library 'libtriton_other.so' for model 'm'"),
        ("fake", "model.py", "unable to find backend library 'model.py' for model 'm'"),
        ("fake", "../libtriton_fake.so", "backend library name '../libtriton_fake.so' escapes backend directory"),
        ("fake", "/x/libtriton_fake.so", "backend library name '/x/libtriton_fake.so' escapes backend directory"),
    ],
)
def test_one_that_is_not_here_is_named(backend: str, runtime: str, message: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        find_backend(BACKENDS, config_of(backend, runtime))
    assert caught.value.message == message
    assert caught.value.hint
