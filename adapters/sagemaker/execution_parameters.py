"""The limits that batch transform asks for before it sends the first request.

Source: docs/spec/sagemaker.md sections A2 and A6.
"""

from __future__ import annotations

from adapters.sagemaker.settings import IN_FLIGHT_MB, SageMakerSettings
from core.http.application import V2Application
from core.http.reply import Environ, Reply, json_reply

_MB = 1 << 20


def execution_parameters(settings: SageMakerSettings, application: V2Application, environ: Environ) -> Reply:
    """Bodies within the server's limit, and as many at once as the platform's limit for all bodies in flight allows."""
    payload = min(settings.max_payload_mb, max(1, application.options.max_input_size // _MB))
    transforms = settings.max_concurrent_transforms
    if payload:
        transforms = max(1, min(transforms, IN_FLIGHT_MB // payload))
    return json_reply(
        {"MaxConcurrentTransforms": transforms, "BatchStrategy": settings.batch_strategy, "MaxPayloadInMB": payload}
    )
