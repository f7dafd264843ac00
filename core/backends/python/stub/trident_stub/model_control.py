"""The models of the server, loaded, unloaded and asked for by a model.

The server's calls are `load_model`, `unload_model` and `is_model_ready`; the contents of files are Base64.
Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import base64
from typing import Any

from . import server
from .errors import TritonModelException
from .text import text_of


def load_model(
    model_name: str | bytes, config: str | bytes = "", files: dict[str | bytes, bytes] | None = None
) -> None:
    """Load a model, or load it again, with a configuration and files in place of those of the repository.

    `files` are contents by `file:PATH`. Raises TritonModelException with the reason.
    """
    fields = {"model_name": text_of(model_name, "'model_name'"), "config": text_of(config, "'config'")}
    encoded = {}
    for path, content in (files or {}).items():
        _check(f"files[{path!r}]", content, bytes)
        encoded[text_of(path, "'files'")] = base64.b64encode(content).decode()
    _call("Failed to load model: ", "load_model", {**fields, "files": encoded})


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Begin to unload a model. Raises TritonModelException with the reason."""
    _check("unload_dependents", unload_dependents, bool)
    fields = {"model_name": text_of(model_name, "'model_name'"), "unload_dependents": unload_dependents}
    _call("Failed to unload model: ", "unload_model", fields)


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Whether a model serves, in that version or in any. Raises TritonModelException for an invalid version."""
    model_name, model_version = text_of(model_name, "'model_name'"), text_of(model_version, "'model_version'")
    prefix = "Failed to check model readiness: "
    if model_version and not (model_version.isascii() and model_version.isdigit() and int(model_version) > 0):
        raise TritonModelException(
            f"{prefix}failed to get model version from specified version string '{model_version}': "
            "it must be an integer greater than 0"
        )
    answer = _call(prefix, "is_model_ready", {"model_name": model_name, "model_version": model_version})
    return bool(answer["ready"])


def _call(prefix: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        return server.current().call(name, fields)
    except TritonModelException as error:
        raise TritonModelException(f"{prefix}{error}") from error


def _check(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"'{name}' must be a {expected.__name__}, not {type(value).__name__}")
