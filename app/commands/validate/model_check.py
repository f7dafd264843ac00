"""The check of one model: its configuration, the files that it names, a session of every version, golden requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.validate.examination import Check
from app.commands.validate.golden_run import golden_problems
from app.commands.validate.options import ValidateOptions
from app.settings.groups.backends import split_backend_settings
from app.settings.option import BadOption
from app.settings.option_types import BadValue, integer

if TYPE_CHECKING:
    from core.config.backend_facts import BackendFacts
    from core.config.golden.request import GoldenRequest
    from core.config.model_spec import ModelSpec
    from core.config.problem import Problem
    from core.config.schema import ModelConfig
    from core.errors import NotInstalled
    from core.repository.layout import ModelDirectory
    from core.repository.model_problems import RunGolden


_log = logging.getLogger("trident.validate")


def make_check(options: ValidateOptions) -> RepositoryCheck:
    """The check of models with these options. Raises BadOption."""
    from core.backends.devices.cuda import gpu_ids
    from core.backends.python.environment.environment_settings import CACHED, INSTALL
    from core.backends.registry import BACKEND_DIRECTORY, DEFAULT_MAX_BATCH_SIZE, BackendRegistry

    settings = split_backend_settings(options.backend_config)
    settings.setdefault("", {}).setdefault(BACKEND_DIRECTORY, options.backend_directory)
    # A check must not change the machine unless it is asked to.
    settings.setdefault("python", {}).setdefault(INSTALL, CACHED)
    try:
        for values in settings.values():
            integer(0).parse(values.get(DEFAULT_MAX_BATCH_SIZE, "0"))
    except BadValue as error:
        raise BadOption.of("--backend-config", str(error)) from None
    backends = BackendRegistry(settings, gpu_ids=gpu_ids(), cpu_instead=options.gpu_missing == "cpu")

    def run_golden(
        path: Path, config: ModelConfig, spec: ModelSpec, golden: Sequence[GoldenRequest]
    ) -> Sequence[Problem]:
        return golden_problems(backends, path, config, spec, golden, initialize=options.run)

    return RepositoryCheck(options, backends, run_golden)


class RepositoryCheck:
    """Finds the problems and warnings of one model after the other, then the problems of the ensembles among them."""

    def __init__(self, options: ValidateOptions, backends: BackendFacts, run_golden: RunGolden) -> None:
        from core.config.ensemble.repository_check import KnownModels

        self.known = KnownModels()
        self._options = options
        self._backends = backends
        self._run_golden = run_golden
        self._warnings: list[Problem] = []

    def __call__(self, directory: ModelDirectory) -> Sequence[Problem]:
        from core.repository.model_problems import problems_of

        self.known.note_name(directory.name)
        self._warnings = []
        return problems_of(
            directory,
            self._backends,
            config_name=self._options.config_name,
            auto_complete=self._options.auto_complete,
            run_golden=self._run_golden,
            note_valid=self.known.note,
            note_unchecked=_log_unchecked,
            note_warning=self._warnings.append,
        )

    def warnings(self, directory: ModelDirectory) -> Sequence[Problem]:
        """Those of the model in `directory`, which was checked last; one that concerns several versions once."""
        return [*dict.fromkeys(self._warnings), *make_warnings(self._options)(directory)]

    def together(self) -> Mapping[str, Sequence[Problem]]:
        """The problems of ensembles with the models of their steps, by ensemble."""
        return self.known.problems()


def _log_unchecked(path: Path, error: NotInstalled) -> None:
    """Say that the version in `path` was checked without its framework, and what wrote its files."""
    from core.backends.file_origin import origins_in

    _log.warning(
        "version %s of model '%s' was checked by what its files say, and not loaded: %s (%s)%s",
        path.name,
        path.parent.name,
        error.message,
        error.hint,
        "".join(f"; '{name}' was written by {origin}" for name, origin in origins_in(path).items()),
    )


def make_warnings(options: ValidateOptions) -> Check:
    """Finds the settings of a model that have no effect."""
    from core.repository.model_problems import warnings_of

    return partial(warnings_of, config_name=options.config_name)
