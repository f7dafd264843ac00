"""The modules of sentence-transformers behind the graph: pooling, dense layers, norms. All compute in FP32.

Source: `Pooling`, `Dense`, `LayerNorm` and `Normalize` of sentence-transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from trident.core.backends.text.folder import CONFIG, Pooling, TextModel
from trident.core.config.problem import is_plain, read_file
from trident.core.errors import ModelLoadFailed
from trident.core.inference.tensors import Array

Step = Callable[[Array], Array]
"""Makes vectors [text, size] of vectors [text, size]."""

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -80, 80))))


_ACTIVATIONS: Mapping[str, Step] = {
    "Identity": lambda values: values,
    "Tanh": np.tanh,
    "ReLU": lambda values: np.maximum(values, 0),
    "GELU": lambda values: values * (1 + _erf(values / math.sqrt(2))) / 2,
    "SiLU": lambda values: values * _sigmoid(values),
    "Sigmoid": _sigmoid,
}


def normalized(vectors: Array) -> Array:
    """`vectors` with length 1."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))


def steps_of(model: TextModel, width: int) -> tuple[list[Step], int]:
    """Return the steps behind the graph of `model`, whose vectors have `width` numbers, and how many numbers come out.

    Raises ModelLoadFailed for a module that is not known, or without readable weights.
    """
    steps: list[Step] = []
    for kind, path in model.modules:
        if kind == "Pooling" or kind == "Dropout":
            continue
        if kind == "Normalize":
            if (model.folder / path / CONFIG).exists():
                _settings(model, path)
            if model.normalize is not False:
                steps.append(normalized)
        elif kind in ("Dense", "LayerNorm"):
            step, width = _dense(model, path) if kind == "Dense" else (_layer_norm(model, path), width)
            steps.append(step)
        else:
            raise ModelLoadFailed(
                f"text model '{model.name}' has the module '{kind}', which is not in its graph",
                hint="export the whole model, so that the graph has the output sentence_embedding, and remove "
                "modules.json",
                model=model.name,
            )
    if model.normalize and normalized not in steps:
        steps.append(normalized)
    if model.dimensions and model.dimensions < width:
        width = model.dimensions
        steps.append(lambda vectors: vectors[:, :width])
    return steps, width


def _dense(model: TextModel, path: str) -> tuple[Step, int]:
    settings, weights = _settings(model, path), _weights(model, path)
    named = str(settings.get("activation_function") or "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(named.rpartition(".")[2]) if named.startswith("torch.nn.") else None
    if activation is None:
        raise ModelLoadFailed(f"module {path} of text model '{model.name}' uses {named}, which is not known")
    matrix, bias = weights["linear.weight"].T, weights.get("linear.bias", np.float32(0))
    residual = weights.get("residual.weight")

    def dense(vectors: Array) -> Array:
        found = activation(vectors @ matrix + bias)
        if settings.get("use_residual"):
            found = found + (vectors if residual is None else vectors @ residual.T)
        return np.asarray(found)

    return dense, int(matrix.shape[1])


def _layer_norm(model: TextModel, path: str) -> Step:
    weights = _weights(model, path)

    def layer_norm(vectors: Array) -> Array:
        centred = vectors - vectors.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return np.asarray(scaled * weights["norm.weight"] + weights["norm.bias"])

    return layer_norm


def _settings(model: TextModel, path: str) -> dict[str, Any]:
    """The settings of a module. Raises ModelLoadFailed unless it makes a text's vector of one."""
    if not is_plain(path):
        raise ModelLoadFailed(f"text model '{model.name}' has a module in '{path}', which is outside of it")
    try:
        found = dict(json.loads(read_file(model.folder / path / CONFIG)))
    except (OSError, ValueError, TypeError) as error:
        raise ModelLoadFailed(f"failed to read {path}/{CONFIG} of text model '{model.name}': {error}") from error
    for name in ("module_input_name", "module_output_name"):
        if found.get(name) not in (None, "sentence_embedding"):
            raise ModelLoadFailed(
                f"module {path} of text model '{model.name}' has the {name} {found[name]}, and only vectors of whole "
                "texts (sentence_embedding) are made here",
                model=model.name,
            )
    return found


def _weights(model: TextModel, path: str) -> dict[str, Array]:
    file = model.folder / path / "model.safetensors"
    if not file.is_file():
        raise ModelLoadFailed(
            f"text model '{model.name}' has no {path}/model.safetensors",
            hint="save the model again with sentence-transformers: pickled weights (pytorch_model.bin) are not read",
            model=model.name,
        )
    try:
        with safe_open(file, "numpy") as tensors:
            return {name: tensors.get_tensor(name).astype(np.float32) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelLoadFailed(f"failed to read {file} of text model '{model.name}': {error}") from error


def pool(vectors: Array, mask: Array, modes: tuple[Pooling, ...], skipped: Array | None = None) -> Array:
    """One vector for each text of `vectors` [text, token, size]: those of all `modes`, joined.

    `mask` is 1 where a text has a token. The first `skipped` [text] tokens are left out, as the prompt is.
    """
    vectors = vectors.astype(np.float32, copy=False)
    positions = np.arange(mask.shape[1])
    if skipped is not None:
        mask = mask * (positions >= skipped[:, None])
    rows = np.arange(len(vectors))
    weights = mask.astype(np.float32)
    found = []
    for mode in modes:
        if mode is Pooling.CLS:
            found.append(vectors[rows, mask.argmax(axis=1)])
        elif mode is Pooling.LAST_TOKEN:
            found.append(vectors[rows, np.where(mask == 1, positions, 0).max(axis=1)])
        elif mode is Pooling.MAX:
            found.append(np.where(mask[:, :, None] == 1, vectors, -np.inf).max(axis=1))
        else:
            each = weights * (positions + 1) if mode is Pooling.WEIGHTED_MEAN else weights
            counts = np.maximum(each.sum(axis=1, keepdims=True, dtype=np.float32), 1e-9)
            sums = np.matmul(each[:, None, :].astype(np.float32), vectors)[:, 0]
            found.append(sums / (np.sqrt(counts) if mode is Pooling.MEAN_SQRT_LENGTH else counts))
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)
