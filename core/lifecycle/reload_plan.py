"""Decides what a change in the repository requires: which versions are loaded, kept, reconfigured or dropped.

Pure functions: they compare the files and the configuration of a model with those that it was loaded from.
Source: docs/spec/repository.md section 1.6, "What reloads".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from core.config.schema import ModelConfig
from core.repository.layout import CONFIG_FILE, NAMED_CONFIGS
from core.repository.sources.source import SourceFile
from core.repository.versions import version_number


@dataclass(frozen=True, slots=True)
class Content:
    """What a model is loaded from: its files, and its configuration as the file or the load request has it."""

    files: tuple[SourceFile, ...]
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """`load` are built beside the old versions and swapped in, then `drop` are unloaded; `keep` continue to serve.

    `reconfigure`: instance groups or version policy of those to keep have changed.
    """

    load: tuple[int, ...]
    keep: tuple[int, ...]
    drop: tuple[int, ...]
    reconfigure: bool

    @property
    def changes_nothing(self) -> bool:
        return not (self.load or self.drop or self.reconfigure)


def plan_reload(
    old: Content | None, new: Content, wanted: Sequence[int], serving: Collection[int], *, force: bool = False
) -> Plan:
    """`wanted` are the versions that the policy selects of `new`; `serving` those that are ready, of `old`.

    `force` reloads although nothing changed (a load request with its own configuration), unless the configurations
    differ in what can be changed in place only.
    """
    reload_all = old is None or _shared_files(old) != _shared_files(new) or _core(old.config) != _core(new.config)
    in_place = old is not None and old.config != new.config and not reload_all
    if force and not in_place:
        reload_all = True
    load = tuple(
        version
        for version in wanted
        if reload_all
        or old is None
        or version not in serving
        or _version_files(old, version) != _version_files(new, version)
    )
    keep = tuple(version for version in wanted if version not in load)
    drop = tuple(sorted(version for version in serving if version not in wanted))
    reconfigure = bool(keep) and old is not None and old.config != new.config
    return Plan(load, keep, drop, reconfigure)


def _core(config: ModelConfig) -> ModelConfig:
    """The configuration without the parts that can change while a version serves."""
    core = ModelConfig()
    core.CopyFrom(config)
    core.ClearField("instance_group")
    core.ClearField("version_policy")
    return core


def _shared_files(content: Content) -> list[SourceFile]:
    """The files that all versions share, without the configuration, which is compared by its content."""
    return [file for file in content.files if not _is_config(file.path) and _version_of(file.path) is None]


def _version_files(content: Content, version: int) -> list[SourceFile]:
    return [file for file in content.files if _version_of(file.path) == version]


def _is_config(path: str) -> bool:
    return path == CONFIG_FILE or path.startswith(f"{NAMED_CONFIGS}/")


def _version_of(path: str) -> int | None:
    folder, slash, _ = path.partition("/")
    return version_number(folder) if slash else None
