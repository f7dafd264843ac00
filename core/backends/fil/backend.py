"""The backend `fil`: decision trees, which Treelite runs on the CPU.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import treelite

from core.backends.base import Backend, BackendModel, LoadContext
from core.backends.fil.scores import answers
from core.backends.fil.tree_file import read_trees, tree_path
from core.backends.fil.tree_prediction import TreePrediction
from core.backends.fil.tree_settings import TreeSettings
from core.backends.in_process.instance import Failures, Run
from core.backends.in_process.model import InProcessModel
from core.config.placement import DeviceKind, Placement, placements
from core.config.schema import ModelConfig, datatype_of
from core.config.signature import ModelSignature, TensorSignature
from core.errors import BackendFailed, ConfigInvalid, ServerError, Unsupported
from core.inference.tensors import BY_NAME, Array, element_count

_FP32 = BY_NAME["FP32"]
_INPUT = "input__0"
_OUTPUT = "output__0"
_SHAP = "treeshap_output"


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend. It has no settings."""
    return FilBackend()


class FilBackend:
    """Implements Backend. Loader threads, several at once."""

    supports_gpus = False
    completes_configs = False

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        """One input of as many features as the trees know, one output. Triton leaves both to the configuration."""
        settings = TreeSettings.read(config)
        trees = read_trees(tree_path(path, config, settings), settings, config.name)
        width = _width(trees, settings)
        return ModelSignature(
            (TensorSignature(_INPUT, _FP32.name, (-1, int(trees.num_feature))),),
            (TensorSignature(_OUTPUT, _FP32.name, (-1, width)),),
        )

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Never called: the trees say what they are."""
        raise NotImplementedError

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for what only Triton's GPU library has, and for wrong parameters and tensors."""
        if any(placement.kind is DeviceKind.GPU for placement in placements(config)):
            raise Unsupported(
                "KIND_GPU cannot be used in CPU-only build",
                hint="set the kind of the instance group to KIND_CPU",
                model=config.name,
            )
        TreeSettings.read(config)
        _check_tensors(config)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version. Raises a ServerError."""
        config = context.config
        self.check(config)
        settings = TreeSettings.read(config)
        path = tree_path(context.path, config, settings)
        (output,) = context.spec.outputs.values()
        width = element_count(tuple(dim for dim in output.dims if dim != -1))
        threads = settings.threads or context.threads or 1

        def load(placement: Placement) -> Any:
            trees = read_trees(path, settings, config.name)
            _check_trees(config, trees, settings, width)
            return trees

        def make_run(trees: Any, placement: Placement) -> Run:
            prediction = TreePrediction(trees, threads)

            def run(names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
                return [answers(prediction.scores(feed[_INPUT]), settings, width)]

            return run

        described = {"execution provider": f"Treelite {treelite.__version__}", "threads": str(threads)}
        # How far a row goes in a tree differs with its values, but no further than the tree is deep.
        return InProcessModel(context, load, make_run, _FAILURES, described, may_run_inline=True)


def _error_of(exc: Exception, model: str) -> ServerError:
    return BackendFailed(str(exc), model=model)


_FAILURES = Failures((treelite.TreeliteError, ValueError), _error_of)


def _check_tensors(config: ModelConfig) -> None:
    """Raise a ServerError unless the configuration has Triton's one input and output of FP32."""
    for side, entries, name in (("input", config.input, _INPUT), ("output", config.output, _OUTPUT)):
        if any(entry.name == _SHAP for entry in entries):
            raise Unsupported(
                f"output '{_SHAP}' of model '{config.name}' cannot be computed: Treelite has no SHAP values",
                hint=f"remove the output '{_SHAP}'",
                model=config.name,
            )
        if [entry.name for entry in entries] != [name]:
            given = ", ".join(f"'{entry.name}'" for entry in entries) or "none"
            raise ConfigInvalid(
                f"model '{config.name}' must have the one {side} '{name}', but the configuration has {given}",
                model=config.name,
            )
        if datatype_of(entries[0].data_type) is not _FP32:
            raise BackendFailed(
                f"incorrect type {_type_name(entries[0].data_type)} for {side} with required type FP32",
                hint="set data_type: TYPE_FP32",
                model=config.name,
            )


def _type_name(number: int) -> str:
    datatype = datatype_of(number)
    return datatype.name if datatype else "INVALID"


def _check_trees(config: ModelConfig, trees: Any, settings: TreeSettings, width: int) -> None:
    """Raise a ServerError if the trees do not fit the configuration: Treelite itself would read beyond a short row."""
    dims = tuple(config.input[0].reshape.shape) or tuple(config.input[0].dims)
    features = int(trees.num_feature)
    if not dims or dims[-1] != features:
        raise ConfigInvalid(
            f"unable to load model '{config.name}', the trees have {features} features, but input '{_INPUT}' has dims "
            f"{list(dims)}",
            hint=f"set dims: [ {features} ]",
            model=config.name,
        )
    header = trees.get_header_accessor()
    if int(header.get_field("num_target")[0]) > 1:
        raise Unsupported("Multi-target model not supported", model=config.name)
    given = _width(trees, settings)
    is_binary = settings.is_classifier and settings.predict_proba and int(header.get_field("num_class")[0]) == 1
    if width != given and not (is_binary and width == 1):
        raise ConfigInvalid(
            f"unable to load model '{config.name}', the trees give {given} values a row, but output '{_OUTPUT}' has "
            f"dims {list(config.output[0].dims)}",
            hint=f"set dims: [ {given} ]; is_classifier and predict_proba decide how many there are",
            model=config.name,
        )


def _width(trees: Any, settings: TreeSettings) -> int:
    """How many values a row gets."""
    classes = int(trees.get_header_accessor().get_field("num_class")[0])
    if settings.is_classifier and not settings.predict_proba:
        return 1
    return max(2, classes) if settings.is_classifier else classes
