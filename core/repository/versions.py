"""The version directories of a model, and which of them its version policy selects.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from core.config.platforms import is_ensemble
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid
from core.repository.layout import GOLDEN_REQUESTS, NAMED_CONFIGS, ModelDirectory

_log = logging.getLogger("trident.repository")
RESERVED_FOLDERS = frozenset({"warmup", "initial_state", NAMED_CONFIGS, GOLDEN_REQUESTS})
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_LARGEST = 2**63 - 1


def version_directories(directory: ModelDirectory) -> list[int]:
    """The versions present, ascending; `0` is allowed. A directory with any other name is logged and skipped.

    Triton reads `3_old` as version 3 and then fails because it finds no directory `3`; here `3_old` is skipped.
    """
    versions: list[int] = []
    for name in directory.folders():
        if name in RESERVED_FOLDERS:
            continue
        if len(name) > 1 and name.startswith("0"):
            _log.warning("ignore version directory '%s' which contains leading zeros in its directory name", name)
        elif version_number(name) is None:
            _log.warning("ignore version directory '%s' which fails to convert to integral number", name)
        else:
            versions.append(int(name))
    return sorted(versions)


def available_versions(config: ModelConfig, directory: ModelDirectory) -> list[int]:
    """The versions that a policy may select. An ensemble without a version folder has version 1.

    Triton refuses it. But git and most object stores keep no empty folder, and an ensemble has nothing to put into one.
    """
    return version_directories(directory) or ([1] if is_ensemble(config) else [])


def version_number(name: str) -> int | None:
    """The version that a directory with this name holds; None if the name is not a version."""
    if not _NUMBER.fullmatch(name) or (len(name) > 1 and name.startswith("0")) or int(name[:20]) > _LARGEST:
        return None
    return int(name)


def version_path(directory: ModelDirectory, version: int) -> Path:
    return directory.path / str(version)


def select_versions(config: ModelConfig, available: Sequence[int], model_name: str, layout_hint: str = "") -> list[int]:
    """The versions that the policy of `config` selects from `available`, ascending; ConfigInvalid if there is none.

    `layout_hint` is for a model that has no version at all.
    """
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    selected = sorted(available)
    if choice == "specific":
        for version in policy.specific.versions:
            if version not in available:
                _log.warning(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    model_name,
                )
        selected = [version for version in selected if version in policy.specific.versions]
    elif choice == "latest" or not config.HasField("version_policy"):  # the default policy is the latest version
        selected = selected[-max(1, policy.latest.num_versions) :]
    if not selected:
        raise ConfigInvalid(
            f"at least one version must be available under the version policy of model '{model_name}'",
            hint=f"found the versions {', '.join(map(str, available))}: change version_policy, or add a version"
            if available
            else layout_hint,
            model=model_name,
        )
    return selected
