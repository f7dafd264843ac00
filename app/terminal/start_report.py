"""The log of a start: the settings, the models, and the addresses of the services.

Source: docs/spec/server-options.md section 4, docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import json
import logging
import math
import shlex
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from app.settings.precedence import DEFAULT
from app.settings.server import ServerSettings
from app.settings.services import Service, spell_endpoint
from app.terminal.console_tables import ModelRow, addresses_table, models_table, options_table
from core.config.model_spec import ModelSpec
from core.lifecycle.overview import VersionOverview
from core.observability.logging import log_command, log_table

_log = logging.getLogger("trident.server")

# Triton's names of the services, for the lines that tools wait for.
_STARTED = {
    Service.GRPC: "GRPCInferenceService",
    Service.HTTP: "HTTPService",
    Service.SAGEMAKER: "Sagemaker HTTPService",
    Service.VERTEX_AI: "Vertex AI HTTPService",
    Service.METRICS: "Metrics Service",
}


_EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]", ""})
_LONGEST_BODY = 1000
_MOST_ELEMENTS = 256
# By the kinds of numpy's types; the two types of 16 bits have no JSON.
_ZEROS: dict[str, object] = {"b": False, "u": 0, "i": 0, "f": 0, "O": "text"}
_NOT_JSON = ("FP16", "BF16")


def log_settings(settings: ServerSettings) -> None:
    """Log the options that are not at their defaults, and the settings of the platforms."""
    given = [row for row in settings.describe() if row.source != DEFAULT]
    log_table(_log, "options that are not at their defaults", options_table(given))
    if settings.allow_sagemaker and settings.sagemaker is not None:
        log_table(_log, "SageMaker's settings", options_table(settings.sagemaker.describe()))
    if settings.vertex is not None:
        log_table(_log, "Vertex AI's settings", options_table(settings.vertex.describe()))


def log_models(rows: Sequence[ModelRow]) -> None:
    log_table(_log, "models", models_table(rows))


def log_services(settings: ServerSettings) -> None:
    """Log the addresses of the services that have started."""
    services = settings.services()
    addresses = [(name[0].upper() + name[1:], spell_endpoint(*place)) for name, place in services.items()]
    log_table(_log, "addresses", addresses_table(addresses))
    for service, place in services.items():
        _log.info("Started %s at %s", _STARTED[service], spell_endpoint(*place))


def log_first_request(settings: ServerSettings, specs: Iterable[ModelSpec]) -> None:
    """Log where the server serves, with a request to one of the ready models in `specs` that a person can copy."""
    if not settings.allow_http:
        return
    host = "localhost" if settings.http_address in _EVERYWHERE else settings.http_address
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    url = f"{'https' if settings.http_use_ssl else 'http'}://{spell_endpoint(host, settings.http_port)}"
    chosen = min(specs, key=lambda spec: (len(_body(spec)) or _LONGEST_BODY, spec.name), default=None)
    words = ["curl", "-s", *(["-k"] if settings.http_use_ssl else [])]
    if settings.auth_token_file:
        words += ["-H", '"Authorization: Bearer $TOKEN"']
    if chosen is None:
        words.append(f"{url}/v2")
    elif body := _body(chosen):
        words += [shlex.quote(f"{url}/v2/models/{quote(chosen.name)}/infer"), "-d", shlex.quote(body)]
    else:
        words.append(shlex.quote(f"{url}/v2/models/{quote(chosen.name)}"))
    log_command(_log, f"Serving at {url}. To try it:", " ".join(words))


def _body(spec: ModelSpec) -> str:
    """A request of zeros; "" for a model whose requests are long, binary, or parts of a sequence or a stream."""
    if spec.sequence is not None or spec.decoupled:
        return ""
    inputs = []
    for each in (entry for entry in spec.inputs.values() if not entry.optional):
        shape = [1 if size < 0 else size for size in each.dims]
        batch = [1] if spec.max_batch_size > 0 and not each.is_shape_tensor else []
        zero = _ZEROS.get(each.datatype.kind)
        if zero is None or each.datatype.name in _NOT_JSON or math.prod(shape) > _MOST_ELEMENTS:
            return ""
        data = [zero] * math.prod(shape)
        inputs.append({"name": each.name, "datatype": each.datatype.name, "shape": [*batch, *shape], "data": data})
    text = json.dumps({"inputs": inputs}, separators=(",", ":"))
    return text if inputs and len(text) < _LONGEST_BODY else ""


def model_row(line: VersionOverview) -> ModelRow:
    entry = line.entry
    return ModelRow(
        entry.name,
        "" if entry.version is None else str(entry.version),
        "" if entry.state is None else entry.state.value,
        line.device,
        line.execution_provider,
        entry.reason,
    )
