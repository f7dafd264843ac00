"""What batch transform asks before it sends anything.

Source: docs/spec/sagemaker.md sections A2 and A6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.http.reply import Environ, Reply, json_reply

if TYPE_CHECKING:
    from adapters.sagemaker.application import SageMakerApplication

_MB = 1 << 20
# All bodies in flight together, by the platform's rule.
_IN_FLIGHT_MB = 100


def execution_parameters(application: SageMakerApplication, environ: Environ) -> Reply:
    """No more than the server takes: a body within its limit, and as many of them as the platform sends at once."""
    settings = application.settings
    payload = min(settings.max_payload_mb, max(1, application.options.max_input_size // _MB))
    transforms = settings.max_concurrent_transforms
    if payload:
        transforms = max(1, min(transforms, _IN_FLIGHT_MB // payload))
    return json_reply(
        {"MaxConcurrentTransforms": transforms, "BatchStrategy": settings.batch_strategy, "MaxPayloadInMB": payload}
    )
