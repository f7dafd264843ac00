"""The model directory as the platform fills it: the models in it, and the one that requests run.

Source: docs/spec/sagemaker.md sections A4 and B2. Unlike Triton, a folder that cannot be a model is ignored,
and a single model needs no repository around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adapters.sagemaker.settings import DEFAULT_MODEL
from core.errors import ConfigInvalid
from core.repository.sources.any_layout import AnyLayoutSource
from core.repository.sources.local import LocalSource

_ACCEPTED = (
    "it may hold <model>/config.pbtxt and <model>/<version>/model.onnx, or one model without a folder of its own: "
    "config.pbtxt, <version>/model.onnx or model.onnx"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of the models, sorted, and the name of the one that /invocations runs."""

    models: tuple[str, ...]
    default_model: str


def read_layout(root: str, default_model: str = "") -> Layout:
    """Read the layout of the folder `root`. `default_model` is the configured name, or "".

    Raises ConfigInvalid if there is no model or the default one is ambiguous, and RepositoryUnavailable if the folder
    cannot be read. Blocks on the disk.
    """
    path = Path(root).absolute()
    if not path.is_dir():
        raise ConfigInvalid(
            f"there is no model: {root} is not a directory", hint="the platform unpacks the model's archive there"
        )
    models = _models(path)
    if not models:
        names = sorted(entry.name for entry in path.iterdir())
        found = f"it holds {', '.join(map(repr, names[:10]))}{' …' if names[10:] else ''}" if names else "it is empty"
        raise ConfigInvalid(f"there is no model in {root}: {found}", hint=_ACCEPTED)
    if default_model and default_model not in models:
        raise ConfigInvalid(
            f"{DEFAULT_MODEL} is '{default_model}', which is not a model in {root}",
            hint=f"the models are: {', '.join(models)}",
        )
    if not default_model and len(models) > 1:
        raise ConfigInvalid(
            f"{root} holds several models: {', '.join(models)}",
            hint=f"set {DEFAULT_MODEL} to the model that /invocations runs",
        )
    return Layout(models, default_model or models[0])


def _models(path: Path) -> tuple[str, ...]:
    found = AnyLayoutSource(LocalSource(path.parent), path.name, LocalSource(path)).scan()
    return tuple(sorted(found))
