"""One instance of a model without a server, for the commands that run models: `validate` and `import`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trident.core.backends.backend import BackendInstance, LoadContext
from trident.core.backends.cpu_budget import available_cores, plan_threads
from trident.core.backends.registry import BackendRegistry
from trident.core.config.placement import placements
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec


@contextmanager
def first_instance(
    backends: BackendRegistry, path: Path, config: ModelConfig, spec: ModelSpec
) -> Iterator[BackendInstance]:
    """Load the version in directory `path` and give its first instance, which is freed with the context.

    Raises ServerError, which is NotInstalled without the framework.
    """
    placed = placements(config)[:1]
    threads = plan_threads(available_cores(), 1).intra_op_threads
    with ExitStack() as loaded:
        model = backends.find(config).load(LoadContext(path, config, spec, placed, threads))
        loaded.callback(model.close)
        instance = model.instance(placed[0])
        loaded.callback(instance.close)
        yield instance
