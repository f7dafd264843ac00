"""An inference server that speaks Triton's protocol, and its engine as a library: docs/library.md.

docs/architecture.md shows its parts, core, adapters, app and tools: in the source tree these are links to the folders
beside this one; an installation has one package, `trident`. `import trident` loads none of them: a name loads what it
needs.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

try:
    from trident.app.version import VERSION as __version__
except ModuleNotFoundError:
    if Path(__file__).with_name("app").is_file():
        raise ImportError(
            "this checkout has text files where the folder `trident` has links: run `git config core.symlinks true` "
            "and `git checkout -- trident`, on Windows in a shell that may make links (CONTRIBUTING.md)"
        ) from None
    raise

# Libraries would tell their makers of their use, from here, from the processes of models, or from programs that import
# them beside this package. They read these variables when they are imported or first used; a user's own values count.
for _name, _value in (
    ("ORT_DISABLE_TELEMETRY", "1"),  # ONNX Runtime and ONNX Runtime GenAI
    ("DO_NOT_TRACK", "1"),  # Hugging Face's
    ("MLFLOW_DISABLE_TELEMETRY", "true"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _value)
# The import of OpenVINO sends usage, unless this package is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

if TYPE_CHECKING:
    from trident.app.library.functions import FunctionModel, model
    from trident.app.library.model import Model, Outputs, RequestOptions, Stream
    from trident.app.library.ports import OpenPorts
    from trident.app.library.server import Server
    from trident.core.errors import (
        AccessRefused,
        AlreadyLoaded,
        BackendFailed,
        ConfigInvalid,
        DeadlineExceeded,
        DeviceLost,
        ErrorCode,
        InvalidRequest,
        ModelLoadFailed,
        ModelLoading,
        ModelNotFound,
        ModelNotReady,
        NotInstalled,
        OutOfMemory,
        QueueFull,
        RepositoryUnavailable,
        RequestCancelled,
        ServerError,
        ServerStopping,
        Unsupported,
    )

__all__ = [
    "AccessRefused",
    "AlreadyLoaded",
    "BackendFailed",
    "ConfigInvalid",
    "DeadlineExceeded",
    "DeviceLost",
    "ErrorCode",
    "FunctionModel",
    "InvalidRequest",
    "Model",
    "ModelLoadFailed",
    "ModelLoading",
    "ModelNotFound",
    "ModelNotReady",
    "NotInstalled",
    "OpenPorts",
    "OutOfMemory",
    "Outputs",
    "QueueFull",
    "RepositoryUnavailable",
    "RequestCancelled",
    "RequestOptions",
    "Server",
    "ServerError",
    "ServerStopping",
    "Stream",
    "Unsupported",
    "__version__",
    "model",
]

# Where the names are that are not errors.
_MODULES = {
    "FunctionModel": "functions",
    "Model": "model",
    "OpenPorts": "ports",
    "Outputs": "model",
    "RequestOptions": "model",
    "Server": "server",
    "Stream": "model",
    "model": "functions",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'trident' has no attribute '{name}'")
    module = f"trident.app.library.{_MODULES[name]}" if name in _MODULES else "trident.core.errors"
    found: object = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
