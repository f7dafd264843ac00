"""The reasons for which a server cannot serve after its models were loaded.

Source: docs/spec/server-options.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.settings.server import ServerSettings
from app.terminal.console_tables import ModelRow
from core.lifecycle.serving_phase import Phase, ServingPhase
from core.lifecycle.state import ModelState

_MAX_SHOWN = 3
# The group of routes through which clients load models.
_CONTROL = "model-repository"


def start_failure(settings: ServerSettings, phase: ServingPhase, rows: Sequence[ModelRow]) -> str:
    """Why the server cannot start, as `CODE - message`; "" if it can. `rows` are the model versions after startup."""
    if not settings.exit_on_error:
        return ""
    if phase.name == Phase.FAILED:
        return f"Internal - failed to load all models{_reasons(phase.failures)}"
    problem = default_model_problem(settings, rows)
    return f"Invalid argument - {problem}" if problem and phase.name != Phase.EXITING else ""


def default_model_problem(settings: ServerSettings, rows: Sequence[ModelRow]) -> str:
    """Why Vertex AI's default model will never be ready, given the `rows` of models after startup; "" if it may be.

    The health probe asks for that model, so the server would stay unhealthy.
    """
    vertex = settings.vertex
    if vertex is None or not vertex.default_model:
        return ""
    loaded = sorted({row.model for row in rows if row.state == ModelState.READY.value})
    changes = settings.allow_http or _CONTROL in vertex.public_groups
    may_be_loaded = settings.model_control_mode == "poll" or (settings.model_control_mode == "explicit" and changes)
    if vertex.default_model in loaded or may_be_loaded:
        return ""
    listed = ", ".join(loaded[:_MAX_SHOWN]) + (" …" if loaded[_MAX_SHOWN:] else "")
    return f"--vertex-ai-default-model is '{vertex.default_model}', which is not among the loaded models: {listed}"


def _reasons(failures: Mapping[str, str]) -> str:
    """The first failures and their reasons, for the last line of the log; earlier lines have all of them."""
    if not failures:
        return ""
    shown = [f"{name}: {reason}" for name, reason in sorted(failures.items())[:_MAX_SHOWN]]
    more = len(failures) - len(shown)
    return f" ({'; '.join(shown)}{f'; and {more} more' if more else ''})"
