"""Warmup: what an instance executes before it is ready.

Source: docs/spec/model-config.md section 2.8, docs/ragged-batching.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trident.core.backends.backend import BackendInstance
from trident.core.config.resolve import WarmupSample, bucket_samples
from trident.core.errors import ConfigInvalid, OutOfMemory, ServerError
from trident.core.lifecycle.version import ModelVersion
from trident.core.scheduling.run_once import run_once

_log = logging.getLogger("trident.lifecycle")


def warm_up(
    version: ModelVersion, instance: BackendInstance, probe: BackendInstance, samples: Sequence[WarmupSample]
) -> None:
    """Run each of `samples`, and then each batch bucket, on `probe`, which executes on `instance`.

    Raises ConfigInvalid or OutOfMemory for the first that fails.
    """
    buckets = bucket_samples(version.spec, samples)
    if buckets:  # the reason why the load takes longer, perhaps much longer
        _log.info(
            "model '%s': instance '%s' runs its %d batch buckets once before it is ready",
            version.name,
            instance.placement.name,
            len(buckets),
        )
    for sample in [*samples, *buckets]:
        for iteration in range(sample.count):
            version.attempt.begin(f"warmup sample '{sample.name}' on instance '{instance.placement.name}'")
            _log.debug(
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                version.name,
                instance.placement.name,
                sample.name,
                iteration + 1,
            )
            try:
                requests = [sample.request(version.spec) for _ in range(sample.batch_size)]
                with version.reservations.held(instance):
                    run_once(probe, requests, version.check)
            except ServerError as error:
                kind = OutOfMemory if isinstance(error, OutOfMemory) else ConfigInvalid
                raise kind(sample.failure(error.message), hint=error.hint) from error
