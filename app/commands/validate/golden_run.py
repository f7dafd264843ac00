"""Tries a model version: runs its golden requests, or imports its code."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import NotInstalled, ServerError

if TYPE_CHECKING:
    from core.backends.base import BackendInstance
    from core.backends.registry import BackendRegistry
    from core.config.golden.request import GoldenRequest
    from core.config.model_spec import ModelSpec
    from core.config.problem import Problem
    from core.config.schema import ModelConfig

_log = logging.getLogger("trident.validate")


def golden_problems(
    backends: BackendRegistry,
    path: Path,
    config: ModelConfig,
    spec: ModelSpec,
    golden: Sequence[GoldenRequest],
    *,
    initialize: bool = False,
) -> Sequence[Problem]:
    """Load the version in directory `path`, run each of `golden` on its first instance, and free the version.

    Without a golden request, a model that is code is imported, and with `initialize` initialized.
    """
    if not golden:
        return _trial_problems(backends, path, config, spec, initialize)
    from core.backends.base import LoadContext
    from core.backends.devices.cpu_budget import available_cores, plan_threads
    from core.config.placement import placements

    placed = placements(config)[:1]
    threads = plan_threads(available_cores(), 1).intra_op_threads
    context = LoadContext(path=path, config=config, spec=spec, placements=placed, threads=threads)
    problems: list[Problem] = []
    try:
        with ExitStack() as loaded:
            model = backends.find(config).load(context)
            loaded.callback(model.close)
            for placement in placed:
                instance = model.instance(placement)
                loaded.callback(instance.close)
                for request in golden:
                    problems += _golden_problem(instance, spec, request)
    except NotInstalled as error:
        _log.warning("the golden requests of model '%s' were not run: %s (%s)", config.name, error.message, error.hint)
    except ServerError as error:
        problems.append(_problem(str(path), error))
    return problems


def _trial_problems(
    backends: BackendRegistry, path: Path, config: ModelConfig, spec: ModelSpec, initialize: bool
) -> Sequence[Problem]:
    from core.backends.base import TryingBackend

    try:
        backend = backends.find(config)
        if isinstance(backend, TryingBackend):
            backend.try_model(path, config, spec, initialize=initialize)
    except NotInstalled as error:
        _log.warning("model '%s' was not imported: %s (%s)", config.name, error.message, error.hint)
    except ServerError as error:
        return [_problem(str(path / config.default_model_filename), error)]
    return []


def _golden_problem(instance: BackendInstance, spec: ModelSpec, request: GoldenRequest) -> Iterator[Problem]:
    from core.config.request_validator import RequestValidator
    from core.lifecycle.golden_check import check_golden

    try:
        check_golden(instance, spec, RequestValidator(spec).check, [request])
    except ServerError as error:
        yield _problem(f"golden/{request.name}", error)


def _problem(path: str, error: ServerError) -> Problem:
    from core.config.problem import Problem

    # What a model raises has lines with its places.
    return Problem(path, " ".join(error.message.split()), error.hint or "")
