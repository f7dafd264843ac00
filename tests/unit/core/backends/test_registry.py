from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import FakeBackend
from trident.core.backends.backend import Backend
from trident.core.backends.registry import BackendRegistry, installed_backends
from trident.core.config.autocomplete import CpuInstead
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid


class MadeBackend(FakeBackend):
    def __init__(self, settings: Mapping[str, str], supports_gpus: bool = False) -> None:
        super().__init__()
        self.settings = settings
        self.supports_gpus = supports_gpus


class Made:
    """A registry of the backends `fake` and, for GPUs, `other`; notes the backends that are made."""

    def __init__(
        self,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        gpu_ids: tuple[int, ...] = (),
        cpu_instead: bool = False,
    ) -> None:
        self.backends: list[MadeBackend] = []
        makers = {"fake": self._make, "other": partial(self._make, supports_gpus=True)}
        self.registry = BackendRegistry(settings or {}, gpu_ids=gpu_ids, cpu_instead=cpu_instead, makers=makers)

    def _make(self, settings: Mapping[str, str], supports_gpus: bool = False) -> Backend:
        self.backends.append(MadeBackend(settings, supports_gpus))
        return self.backends[-1]


def config_of(backend: str, runtime: str = "") -> ModelConfig:
    return ModelConfig(name="m", backend=backend, runtime=runtime)


def test_backend_is_created_once_on_first_use() -> None:
    made = Made()
    assert made.backends == []
    found = made.registry.find(config_of("other"))
    assert made.backends == [found]
    assert made.registry.find(config_of("other")) is found
    assert made.registry.find(config_of("fake")) is made.backends[1]


@pytest.mark.parametrize("character", ";|&$`<>()[]{}\\\"'*?~#!")
def test_model_in_python_has_no_characters_of_a_shell_in_its_names(character: str) -> None:
    registry = BackendRegistry({})
    name = f"m{character}"
    for config in (
        ModelConfig(name=name, backend="python"),
        ModelConfig(name="m", backend="python", instance_group=[{"name": name}]),
        ModelConfig(name=name, backend="pytorch", runtime="model.py"),
    ):
        with pytest.raises(ConfigInvalid, match=r"^Invalid stub name: contains invalid characters$") as caught:
            registry.find(config)
        assert (caught.value.hint or "").endswith(f": {character}")
    # Triton takes those of others.
    registry.find(ModelConfig(name=name, backend="pytorch"))


def test_default_max_batch_size_is_a_setting_of_each_backend() -> None:
    registry = Made({"": {"default-max-batch-size": "8"}, "fake": {"default-max-batch-size": "many"}}).registry
    assert registry.default_max_batch_size(config_of("other")) == 8
    with pytest.raises(ConfigInvalid, match="failed to convert 'many' to integral number"):
        registry.default_max_batch_size(config_of("fake"))
    assert Made().registry.default_max_batch_size(config_of("fake")) == 4


@pytest.mark.parametrize("backend", ["fake", "other", "none"])
def test_cpu_replaces_a_missing_gpu_if_allowed(backend: str) -> None:
    assert isinstance(Made(cpu_instead=True).registry.gpu_ids(config_of(backend)), CpuInstead)
    found = Made(gpu_ids=(0, 1), cpu_instead=True).registry.gpu_ids(config_of(backend))
    assert isinstance(found, CpuInstead) == (backend == "fake")


def written_in_python(tmp_path: Path) -> BackendRegistry:
    """A registry with one backend that is written in Python."""
    (tmp_path / "backends" / "mine").mkdir(parents=True)
    (tmp_path / "backends" / "mine" / "model.py").touch()
    return BackendRegistry({"": {"backend-directory": str(tmp_path / "backends")}})


def test_backend_may_be_written_in_python(tmp_path: Path) -> None:
    registry = written_in_python(tmp_path)
    found = registry.find(config_of("mine"))
    assert found is registry.find(config_of("mine", "model.py"))
    assert found is not registry.find(config_of("python"))
    # Its models have any files, or none.
    registry.check(ModelConfig(name="m", backend="mine", default_model_filename="weights.bin"))


def test_python_backend_has_pythons_settings_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").touch()
    settings = {"": {"backend-directory": str(tmp_path)}, "python": {"stub-timeout-seconds": "0"}}
    with pytest.raises(ConfigInvalid, match="stub-timeout-seconds"):
        BackendRegistry(settings).find(config_of("mine"))
    BackendRegistry({**settings, "mine": {"stub-timeout-seconds": "1"}}).find(config_of("mine"))


def test_unknown_backend_settings_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mine" / "model.py"
    file.parent.mkdir()
    file.touch()
    read = {
        "": {"backend-directory": str(tmp_path), "default-max-batch-size": "8", "stub-timeout-seconds": "30"},
        "onnxruntime": {"plugin=webgpu": "/lib.so", "enable-global-threadpool": "1", "default-max-batch-size": "2"},
        "mine": {"any": "1"},
        "made": {"any": "1"},
    }
    BackendRegistry(read, makers={"made": MadeBackend, **installed_backends()})
    assert caplog.messages == []
    unread = {
        "": {"version": "2"},
        "python": {"shm-growth-byte-size": "1048576", "stub-timeout-seconds": "30"},
        "tensorflow": {"version": "2"},
        "tensorlow": {"default-max-batch-size": "8"},
    }
    BackendRegistry(unread)
    names = ["version", "python,shm-growth-byte-size", "tensorflow,version", "tensorlow,default-max-batch-size"]
    assert caplog.messages == [f"without effect here: {', '.join(f'--backend-config={name}' for name in names)}"]
