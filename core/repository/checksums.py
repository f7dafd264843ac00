"""Triton's checksum agent: files whose MD5 the configuration names are compared with it before anything reads them.

Source: docs/spec/repository.md section 1.11.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Collection, Iterator

from trident.core.config.problem import InvalidModelConfig, Problem, path_inside
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import AGENT_KEY
from trident.core.repository.repository import ModelDirectory

_HINT = "copy the file of the author again, or write the MD5 of this one if it is right"


def check_checksums(directory: ModelDirectory, config: ModelConfig, *, without: Collection[int] = ()) -> None:
    """Raise InvalidModelConfig if a file is not the one that `config` names; its agents are valid.

    The files of the versions `without` are left out: they are checked when their version is loaded.
    """
    problems = list(_problems(directory, config, {str(version) for version in without}))
    if problems:
        raise InvalidModelConfig(problems, model=directory.name)


def _problems(directory: ModelDirectory, config: ModelConfig, without: Collection[str]) -> Iterator[Problem]:
    for index, agent in enumerate(config.model_repository_agents.agents):
        for key, expected in sorted(agent.parameters.items()):
            name = key.partition(":")[2]
            if posixpath.normpath(name).partition("/")[0] in without:
                continue
            field = f"model_repository_agents.agents[{index}].parameters[{key}]"
            path = path_inside(directory.path, name)
            if path is None:
                yield Problem(field, f"file {name} is outside of the model directory", "name a file of the model")
                continue
            try:
                with path.open("rb") as file:
                    found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            except OSError as error:
                yield Problem(field, f"failed to open text file for read {name}: {error.strerror}", AGENT_KEY)
                continue
            if found != expected.lower():
                yield Problem(field, f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {found}", _HINT)
