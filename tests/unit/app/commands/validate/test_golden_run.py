from __future__ import annotations

from pathlib import Path

from trident.app.commands.validate import golden_problems
from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.registry import BackendRegistry
from trident.core.config.golden import GoldenRequest
from trident.core.config.problem import ModelSignature, Problem
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig, ModelInstanceGroup
from trident.core.errors import OutOfMemory


class Unloadable:
    """A backend that can inspect a model but not load it."""

    supports_gpus = False

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        return ModelSignature((), ())

    def check(self, config: ModelConfig) -> None: ...

    def load(self, context: LoadContext) -> BackendModel:
        raise OutOfMemory("no memory left", hint="buy some")


def test_a_version_that_fails_to_load_is_a_problem(tmp_path: Path) -> None:
    config = ModelConfig(
        name="m", backend="fake", instance_group=[ModelInstanceGroup(name="m", kind="KIND_CPU", count=1)]
    )
    spec = resolve_model_spec(config, 1, {})
    golden = [GoldenRequest("a.json", "", (), (), ())]
    backends = BackendRegistry({}, makers={"fake": lambda settings: Unloadable()})
    found = golden_problems(backends, tmp_path / "1", config, spec, golden)
    assert found == [Problem(str(tmp_path / "1"), "no memory left", "buy some")]
