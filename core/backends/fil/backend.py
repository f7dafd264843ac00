"""The backend `fil`: decision trees, which Treelite runs on the CPU.

Source: docs/spec/framework-backends.md section 6.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.backends.base import Backend, BackendModel, LoadContext
from core.backends.fil import EXTRA
from core.backends.fil.tree_file import header_of_file, tree_path
from core.backends.fil.tree_settings import TreeSettings
from core.backends.fil.tree_tensors import INPUT, check_tensors, check_trees, signature_of
from core.backends.framework import check_installed, importing, is_installed
from core.backends.in_process.instance import Run
from core.backends.in_process.model import InProcessModel
from core.config.placement import DeviceKind, Placement, placements
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature
from core.errors import Unsupported
from core.inference.tensors import element_count

_FRAMEWORK = "treelite"


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend. It has no settings."""
    return FilBackend()


class FilBackend:
    """Implements Backend. Loader threads, several at once. Without Treelite it reads what the files say themselves."""

    supports_gpus = False

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """The tensors of the trees in the version directory `path`."""
        settings = TreeSettings.read(config)
        file = tree_path(path, config, settings)
        if not is_installed(_FRAMEWORK):
            header = header_of_file(file, settings, config.name)
            return signature_of(header, settings) if header else None
        with importing("fil", EXTRA):
            from core.backends.fil.trees import header_of, read_trees
        return signature_of(header_of(read_trees(file, settings, config.name)), settings)

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for what only Triton's GPU library has, and for wrong parameters and tensors."""
        if any(placement.kind is DeviceKind.GPU for placement in placements(config)):
            raise Unsupported(
                "KIND_GPU cannot be used in CPU-only build",
                hint="set the kind of the instance group to KIND_CPU",
                model=config.name,
                field="instance_group",
            )
        TreeSettings.read(config)
        check_tensors(config)
        check_installed(_FRAMEWORK, EXTRA, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version. Raises a ServerError."""
        config = context.config
        self.check(config)
        with importing("fil", EXTRA):
            from core.backends.fil.trees import FAILURES, VERSION, header_of, read_trees, run_of
        settings = TreeSettings.read(config)
        path = tree_path(context.path, config, settings)
        (output,) = context.spec.outputs.values()
        width = element_count(tuple(dim for dim in output.dims if dim != -1))
        threads = settings.threads or context.threads or 1

        def load(placement: Placement) -> Any:
            trees = read_trees(path, settings, config.name)
            check_trees(config, header_of(trees), settings, width)
            return trees

        def make_run(trees: Any, placement: Placement) -> Run:
            return run_of(trees, settings, INPUT, width, threads)

        described = {"execution provider": f"Treelite {VERSION}", "threads": str(threads)}
        # How far a row goes in a tree differs with its values, but no further than the tree is deep.
        return InProcessModel(context, load, make_run, FAILURES, described, may_run_inline=True)
