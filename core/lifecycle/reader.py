"""Reads and completes the configurations of models that are to be loaded.

Source: docs/spec/repository.md section 1.6, docs/spec/model-config.md sections 2.4 and 2.5.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from pathlib import Path

from trident.core.backends.backend import WeighingBackend
from trident.core.backends.registry import BackendRegistry
from trident.core.config.autocomplete import Preparation, fill_identity, instance_group_problems, normalize
from trident.core.config.ensemble import EnsembleStep, ensemble_steps
from trident.core.config.platforms import is_ensemble
from trident.core.config.problem import InvalidModelConfig, ModelSignature
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig, ModelInstanceGroup, copy_of, parse_config_override
from trident.core.errors import RepositoryUnavailable, ServerError
from trident.core.lifecycle.memory import CPU
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.version import ModelVersion
from trident.core.memo import Memo
from trident.core.repository.config import check_config, load_config, read_config
from trident.core.repository.layout_hints import layout_hint, unread_configuration
from trident.core.repository.repository import (
    ModelDirectory,
    available_versions,
    chmod_hint,
    detection_files,
    read_labels,
    version_path,
)
from trident.core.repository.sources import Located

_log = logging.getLogger("trident.lifecycle")
_COMPLETED_AT_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model before its load: its configuration as it is written, and the existing versions, ascending.

    `layout_hint` says what its folder lacks if it has no version.
    """

    located: Located
    config: ModelConfig
    available: tuple[int, ...]
    layout_hint: str = ""


class ModelReader:
    """Any number of loader threads at once."""

    def __init__(self, options: EngineOptions, backends: BackendRegistry) -> None:
        self._options = options
        self._backends = backends
        # Completed configurations, by those that they were completed from.
        self._completed: Memo[Hashable, tuple[ModelConfig, ModelSignature]] = Memo(_COMPLETED_AT_MOST)

    def prepare(self, located: Located, override: str | None = None) -> Prepared:
        """Read the model without its graphs. `override`, JSON, replaces its configuration file.

        Raises a ServerError if the model cannot be read, or if its configuration is wrong for any graph.
        """
        name = located.key.name
        fetched = located.source.fetch(name, located.files, None)
        try:
            directory = fetched.directory
            auto_complete = self._options.auto_complete
            if override is not None:
                config = parse_config_override(override)
                if directory.is_renamed:
                    config.name = name
            else:
                config = read_config(directory, config_name=self._options.config_name, required=not auto_complete)
                if unread := unread_configuration(directory):
                    _log.warning("model '%s': %s is not read as its configuration: %s", name, *unread)
            check_config(directory, config, self._backends, auto_complete=auto_complete)
            available = tuple(available_versions(config, directory))
            return Prepared(located, config, available, "" if available else layout_hint(directory, config))
        except OSError as error:
            hint = chmod_hint(fetched.directory.path) if isinstance(error, PermissionError) else None
            reason = f"{error.strerror}: {error.filename}"
            raise RepositoryUnavailable(f"failed to read model '{name}': {reason}", hint=hint, model=name) from error
        finally:
            fetched.release()

    def steps(self, located: Located, override: str | None) -> tuple[EnsembleStep, ...]:
        """The steps of an ensemble; empty for any other model, and for one that cannot be read: `prepare` says why."""
        try:
            if override is not None:
                config = parse_config_override(override)
            else:
                fetched = located.source.fetch(located.key.name, located.files, None)
                try:
                    config = read_config(fetched.directory, config_name=self._options.config_name)
                finally:
                    fetched.release()
        except ServerError:
            return ()
        return ensemble_steps(config) if is_ensemble(config) else ()

    def complete(
        self, directory: ModelDirectory, prepared: Prepared, version: ModelVersion, threads: int
    ) -> Preparation:
        """Complete the configuration and configure `version` with it. Returns what was made of the graph meanwhile.

        A graph that was read is not read again for the same files: models on demand are loaded over and over.
        """
        written = prepared.config
        preparation = Preparation(threads)
        key = version.name, version.version, prepared.located.files, written.SerializeToString(deterministic=True)
        known = self._completed.get(key)
        if known is not None:
            config, preparation.signature = copy_of(known[0]), known[1]
        else:
            config, signature = load_config(
                directory,
                written,
                self._backends,
                auto_complete=self._options.auto_complete,
                version=version.version,
                watch=version.attempt.watch,
                preparation=preparation,
            )
            preparation.signature = signature
            if signature is not None and self._options.control_mode == "demand":
                self._completed[key] = copy_of(config), signature
        version.configure(config, resolve_model_spec(config, version.version, read_labels(directory, config)))
        version.measure(self._options.latencies)
        return preparation

    def with_instances(self, serving: ModelConfig, written: ModelConfig) -> ModelConfig:
        """The configuration of a version that serves, with the instance groups and the version policy of `written`.

        Raises InvalidModelConfig.
        """
        config = copy_of(serving)
        config.ClearField("instance_group")
        config.instance_group.extend(written.instance_group)
        config.version_policy.CopyFrom(written.version_policy)
        gpu_ids = self._backends.gpu_ids(config)
        normalize(config, gpu_ids)
        problems = instance_group_problems(config, config.name, gpu_ids)
        if problems:
            raise InvalidModelConfig(problems, model=config.name)
        return config

    def least_need(
        self, directory: ModelDirectory, written: ModelConfig, version: int, devices: Collection[str]
    ) -> dict[str, int]:
        """The least memory that a model needs of each of `devices`, from its configuration as it is written.

        Empty for a configuration that is wrong; its load will say so. The groups are not expanded: their counts are
        unchecked and may be huge.
        """
        config = copy_of(written)
        fill_identity(config, directory.name, detection_files(directory))
        try:
            normalize(config, self._backends.gpu_ids(config))
            size = self.weight_bytes(config, version_path(directory, version))
        except ServerError:
            return {}
        found: set[str] = set()
        for group in config.instance_group:
            if not group.passive:
                is_on_gpus = group.kind == ModelInstanceGroup.KIND_GPU
                found.update((f"gpu:{gpu}" for gpu in group.gpus) if is_on_gpus else [CPU])
        return dict.fromkeys(found.intersection(devices), size)

    def weight_bytes(self, config: ModelConfig, path: Path) -> int:
        backend = self._backends.find(config)
        return backend.weight_bytes(path, config) if isinstance(backend, WeighingBackend) else 0
