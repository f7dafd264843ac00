"""Versions behind the response cache."""

from __future__ import annotations

import logging
from functools import partial
from hashlib import blake2b

from trident.core.config.schema import core_config
from trident.core.lifecycle.version import ModelVersion
from trident.core.response_cache.response_cache import ResponseCache
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.response_cache import CachingScheduler
from trident.core.scheduling.scheduler import Scheduler

_log = logging.getLogger("trident.lifecycle")


def with_response_cache(
    cache: ResponseCache | None, scheduler: Scheduler, version: ModelVersion, context: SchedulingContext
) -> Scheduler:
    """Return `scheduler`, behind `cache` if the configuration of `version` asks for it."""
    # An ensemble is decoupled if one of its steps is, whatever its configuration says.
    if not version.config.response_cache.enable or version.spec.decoupled:
        return scheduler
    if cache is None:
        _log.warning(
            "model '%s' enables the response cache, but the server has none: start it with "
            "--cache-config=local,size=<bytes> or redis,host=<host>,port=<port>",
            version.name,
        )
        return scheduler
    scope = cache.open_scope(version.name, version.version, partial(answer_identity, version))
    return CachingScheduler(context, scheduler, cache, scope, version)


# Source: docs/spec/schedulers.md section 3.7, "Redis".


def answer_identity(version: ModelVersion) -> bytes | None:
    """A digest of the version's name, number, configuration and files, and of those of its steps.

    None if its files are not known, or have changed since they were loaded. Reads them: for loader threads.
    """
    files = version.content.digest() if version.content is not None else None
    steps = [answer_identity(step) for step in version.steps]
    if files is None or None in steps:
        return None
    config: bytes = core_config(version.config).SerializeToString(deterministic=True)
    parts = [repr((version.name, version.version)).encode(), config, files, *filter(None, steps)]
    whole = blake2b()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()
