"""Execution providers in libraries of their own, which `--backend-config=onnxruntime,plugin=NAME=PATH` names.

Such a library is code that runs in the server: its path comes from the person who starts it, never from a model, whose
configuration has the name only. Source: docs/spec/onnxruntime-backend.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from trident.core.backends.onnxruntime.providers import described
from trident.core.backends.onnxruntime.session import FAILURES, SILENT
from trident.core.errors import ConfigInvalid, ModelLoadFailed

_log = logging.getLogger("trident.backends")
_lock = threading.Lock()
# Paths by name: ONNX Runtime takes a name once in a process.
_registered: dict[str, str] = {}


def register(settings: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    """Load the libraries that a backend's settings name; return ONNX Runtime's devices of each, by the plugin's name.

    The log has a line for each that is new in this process. Raises ModelLoadFailed for one that does not load, and
    ConfigInvalid for one without a name, or with two paths.
    """
    found: dict[str, Sequence[Any]] = {}
    for setting, path in settings.items():
        start, equals, name = setting.partition("=")
        if start != "plugin":
            continue
        if not (equals and name):
            raise ConfigInvalid(f"a plugin is given as plugin=NAME=PATH, not as plugin={path}")
        with _lock:
            is_new = name not in _registered
            if is_new:
                # A failure raises; what else a library says would be on the error output without a time.
                onnxruntime.set_default_logger_severity(SILENT)
                try:
                    onnxruntime.register_execution_provider_library(name, path)
                except FAILURES as exc:
                    raise ModelLoadFailed(
                        f"ONNX Runtime {onnxruntime.__version__} cannot load its plugin '{name}': {exc}",
                        hint="install what the library links, and a plugin that fits this version of ONNX Runtime",
                    ) from exc
                _registered[name] = path
            elif _registered[name] != path:
                raise ConfigInvalid(f"the plugin '{name}' is given as {path}, and as {_registered[name]}")
        devices = onnxruntime.get_ep_devices()
        found[name] = [each for each in devices if each.ep_metadata.get("library_path") == path]
        if is_new:
            _log.info("plugin '%s' of ONNX Runtime: %s", name, described(found[name]))
    return found
