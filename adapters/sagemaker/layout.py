"""What the platform put into the model directory: the models that can be served from it, and which one requests mean.

Source: docs/spec/sagemaker.md sections A4 and B2. Unlike Triton: a folder that cannot be a model does not count, and
a single model needs no repository around it.
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
    """The models by name, sorted, and the one of them that /invocations runs."""

    models: tuple[str, ...]
    default_model: str


def read_layout(root: str, default_model: str = "") -> Layout:
    """What is in the folder `root`, which is only read. `default_model` is the name that was asked for, or "".

    Raises ConfigInvalid where there is no model, or which one is meant cannot be told; RepositoryUnavailable where the
    folder cannot be read. Blocks on the disk.
    """
    path = Path(root).absolute()
    if not path.is_dir():
        raise ConfigInvalid(
            f"there is no model: {root} is no directory", hint="the platform unpacks the model's archive there"
        )
    models = _models(path)
    if not models:
        names = sorted(entry.name for entry in path.iterdir())
        found = f"it holds {', '.join(map(repr, names[:10]))}{' …' if names[10:] else ''}" if names else "it is empty"
        raise ConfigInvalid(f"there is no model in {root}: {found}", hint=_ACCEPTED)
    if default_model and default_model not in models:
        raise ConfigInvalid(
            f"{DEFAULT_MODEL} is '{default_model}', which is no model in {root}",
            hint=f"the models there are: {', '.join(models)}",
        )
    if not default_model and len(models) > 1:
        raise ConfigInvalid(
            f"{root} holds several models: {', '.join(models)}",
            hint=f"name the one that /invocations runs in {DEFAULT_MODEL}",
        )
    return Layout(models, default_model or models[0])


def _models(path: Path) -> tuple[str, ...]:
    found = AnyLayoutSource(LocalSource(path.parent), path.name, LocalSource(path)).scan()
    return tuple(sorted(found))
