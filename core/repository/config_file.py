"""The configuration file of a model directory: found, read and parsed.

Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from core.config.parse import decode_config, parse_model_config
from core.config.problem import InvalidModelConfig, Problem
from core.config.schema import ModelConfig
from core.errors import ModelNotFound
from core.repository.layout import CONFIG_FILE, ModelDirectory, config_path

# Bytes: far more than any real configuration has. Parsing this much takes half a minute.
LARGEST_CONFIG = 8 << 20

_log = logging.getLogger("trident.config")


def read_config(directory: ModelDirectory, *, config_name: str = "", required: bool = False) -> ModelConfig:
    """The configuration as written; an empty one without a file, unless it is `required`.

    Raises InvalidModelConfig, or ModelNotFound for a missing required one.
    """
    path = config_path(directory, config_name)
    if path is None:
        if not required:
            return ModelConfig()
        missing = directory.path / CONFIG_FILE
        _log.error("failed to open text file for read %s: No such file or directory", missing)
        raise ModelNotFound(
            f"model configuration is not provided for model '{directory.name}'",
            hint=f"write {missing}, or let auto-complete make it from the model file",
            model=directory.name,
        )
    try:
        content = _read(path)
    except OSError as error:
        message = f"failed to open text file for read {path}: {error.strerror}"
        raise InvalidModelConfig([Problem(str(path), message)], model=directory.name) from error
    config = parse_model_config(decode_config(content, str(path)), str(path))
    if directory.is_renamed:
        config.name = directory.name
    return config


def _read(path: Path) -> bytes:
    """Raises OSError, and InvalidModelConfig for anything but a regular file of at most LARGEST_CONFIG bytes."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # reading a pipe could take for ever
        message = f"failed to open text file for read {path}: it is not a regular file"
        raise InvalidModelConfig([Problem(str(path), message)])
    if found.st_size > LARGEST_CONFIG:
        message = (
            f"failed to read text proto from {path}: it has {found.st_size} bytes, a model configuration may have "
            f"{LARGEST_CONFIG}"
        )
        raise InvalidModelConfig([Problem(str(path), message)])
    return path.read_bytes()
