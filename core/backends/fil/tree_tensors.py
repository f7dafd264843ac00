"""The tensors of a tree model: what the trees have, and whether a configuration fits them. Treelite checks nothing.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

from core.backends.fil.tree_header import TreeHeader
from core.backends.fil.tree_settings import TreeSettings
from core.config.schema import ModelConfig, datatype_of
from core.config.signature import ModelSignature, TensorSignature
from core.errors import BackendFailed, ConfigInvalid, Unsupported
from core.inference.tensors import BY_NAME

INPUT = "input__0"

_FP32 = BY_NAME["FP32"]
_OUTPUT = "output__0"
_SHAP = "treeshap_output"


def signature_of(header: TreeHeader, settings: TreeSettings) -> ModelSignature:
    """One input of as many features as the trees know, one output. Triton leaves both to the configuration."""
    return ModelSignature(
        (TensorSignature(INPUT, _FP32.name, (-1, header.features)),),
        (TensorSignature(_OUTPUT, _FP32.name, (-1, _width(header, settings))),),
    )


def check_tensors(config: ModelConfig) -> None:
    """Raise a ServerError unless the configuration has Triton's one input and output of FP32."""
    for side, entries, name in (("input", config.input, INPUT), ("output", config.output, _OUTPUT)):
        if any(entry.name == _SHAP for entry in entries):
            raise Unsupported(
                f"output '{_SHAP}' of model '{config.name}' cannot be computed: Treelite has no SHAP values",
                hint=f"remove the output '{_SHAP}'",
                model=config.name,
                field=side,
            )
        if [entry.name for entry in entries] != [name]:
            given = ", ".join(f"'{entry.name}'" for entry in entries) or "none"
            raise ConfigInvalid(
                f"model '{config.name}' must have the one {side} '{name}', but the configuration has {given}",
                model=config.name,
                field=side,
            )
        if datatype_of(entries[0].data_type) is not _FP32:
            raise BackendFailed(
                f"incorrect type {_type_name(entries[0].data_type)} for {side} with required type FP32",
                hint="set data_type: TYPE_FP32",
                model=config.name,
                field=f"{side}[0].data_type",
            )


def check_trees(config: ModelConfig, header: TreeHeader, settings: TreeSettings, width: int) -> None:
    """Raise a ServerError if the trees do not fit the configuration, whose output has `width` values a row.

    Treelite itself would read beyond a short row.
    """
    dims = tuple(config.input[0].reshape.shape) or tuple(config.input[0].dims)
    if not dims or dims[-1] != header.features:
        raise ConfigInvalid(
            f"unable to load model '{config.name}', the trees have {header.features} features, but input '{INPUT}' has "
            f"dims {list(dims)}",
            hint=f"set dims: [ {header.features} ]",
            model=config.name,
            field="input[0].dims",
        )
    if header.targets > 1:
        raise Unsupported("Multi-target model not supported", model=config.name)
    given = _width(header, settings)
    is_binary = settings.is_classifier and settings.predict_proba and header.classes == 1
    if width != given and not (is_binary and width == 1):
        raise ConfigInvalid(
            f"unable to load model '{config.name}', the trees give {given} values a row, but output '{_OUTPUT}' has "
            f"dims {list(config.output[0].dims)}",
            hint=f"set dims: [ {given} ]; is_classifier and predict_proba decide how many there are",
            model=config.name,
            field="output[0].dims",
        )


def _width(header: TreeHeader, settings: TreeSettings) -> int:
    """How many values a row gets."""
    if settings.is_classifier and not settings.predict_proba:
        return 1
    return max(2, header.classes) if settings.is_classifier else header.classes


def _type_name(number: int) -> str:
    datatype = datatype_of(number)
    return datatype.name if datatype else "INVALID"
