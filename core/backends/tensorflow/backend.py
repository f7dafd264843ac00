"""The backend `tensorflow`: SavedModels and frozen graphs.

Source: docs/spec/framework-backends.md section 6.4.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trident.core.backends.backend import Backend, BackendModel, LoadContext
from trident.core.backends.model_files import written_by
from trident.core.backends.parameters import field_of, parameters_of
from trident.core.backends.python.backend import make_backend as make_python_backend
from trident.core.backends.registry import is_installed
from trident.core.backends.tensorflow.model_file import GRAPH_DEF, SAVED_MODEL, check_graph, model_path, signature_of
from trident.core.config.problem import InvalidModelConfig, ModelSignature
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.config.validate import validate_against_signature
from trident.core.errors import ConfigInvalid, ModelLoadFailed, NotInstalled

_log = logging.getLogger("trident.backends")

_FILE = Path(__file__).parent / "stub" / "tensorflow_model.py"
# The parameter that names another Python than the server's, which may have TensorFlow.
_ENVIRONMENT = "EXECUTION_ENV_PATH"
_NOT_NEGATIVE = ("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS")
_POSITIVE = ("MAX_SESSION_SHARE_COUNT",)


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend with the values of --backend-config for it and for Python models."""
    return TensorFlowBackend(settings)


class TensorFlowBackend:
    """Implements Backend. Loader threads, several at once. It imports no TensorFlow: the models' processes do."""

    # TensorFlow places its own operators.
    supports_gpus = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._processes = make_python_backend(settings, _FILE)

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The signature of a SavedModel. A frozen graph does not say what it serves."""
        return signature_of(model_path(path, config), config)

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigInvalid for another platform, and for parameters that have no meaning."""
        if config.platform not in (SAVED_MODEL, GRAPH_DEF):
            raise ConfigInvalid(
                f"platform {config.platform} not supported for TensorFlow model '{config.name}'",
                hint=f"{SAVED_MODEL} or {GRAPH_DEF}",
                field="platform",
            )
        given = parameters_of(config)
        for names, least, what in ((_NOT_NEGATIVE, 0, "non-negative"), (_POSITIVE, 1, "positive")):
            for name in names:
                text = given.get(name, str(least))
                if not text.isdecimal() or int(text) < least:
                    raise ConfigInvalid(
                        f"parameter '{name}' must be {what} number for TensorFlow model '{config.name}'",
                        hint=f"'{text}' is not",
                        field=field_of(name),
                    )
        if _ENVIRONMENT not in parameters_of(config) and not is_installed("tensorflow"):
            _check_openvino(config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a process for each instance, or OpenVINO without TensorFlow. Raises a ServerError."""
        config = context.config
        self.check(config)
        path = model_path(context.path, config)
        if config.platform == GRAPH_DEF:
            check_graph(path, config)
        elif signature := signature_of(path, config):
            problems = validate_against_signature(config, signature, config.name)
            if problems:
                raise InvalidModelConfig(problems)
        if _ENVIRONMENT in parameters_of(config) or is_installed("tensorflow"):
            return self._processes.load(context)
        return _by_openvino(context)


def _by_openvino(context: LoadContext) -> BackendModel:
    """The version as OpenVINO reads it."""
    name = context.config.name
    path = model_path(context.path, context.config)
    from trident.core.backends.openvino.backend import OpenVinoBackend

    _log.info("TensorFlow is not installed: OpenVINO runs model '%s'", name)
    try:
        return OpenVinoBackend().load(replace(context, config=_with_file(context)))
    except ModelLoadFailed as error:
        raise ModelLoadFailed(
            error.message,
            hint=f"'{path.name}'{written_by(path)} cannot be run by OpenVINO; install TensorFlow: "
            "pip install 'trident-inference[tensorflow]'",
        ) from error


def _check_openvino(model: str) -> None:
    """Raise NotInstalled if OpenVINO, which stands in for TensorFlow, is missing as well."""
    if not is_installed("openvino"):
        raise NotInstalled(
            f"failed to load model '{model}': TensorFlow is not installed",
            hint="install it: pip install 'trident-inference[tensorflow]'; or OpenVINO, which is a tenth of its size "
            "and reads most models: pip install 'trident-inference[openvino]'",
        )


def _with_file(context: LoadContext) -> ModelConfig:
    """The configuration with the name of the file, which OpenVINO would not guess."""
    config = copy_of(context.config)
    config.default_model_filename = model_path(context.path, config).name
    return config
