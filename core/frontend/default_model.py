"""The model of a platform's requests that name none.

Source: docs/spec/sagemaker.md sections B1 and B2; docs/spec/vertex.md section B2.
"""

from __future__ import annotations

from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import ConfigInvalid, ModelCold, ModelLoading, ModelNotReady, ServerError
from trident.core.frontend.bridge import Bridge
from trident.core.lifecycle.state import Phase

_SHOWN = 10


class DefaultModel:
    """`configured` is the name given at start, "" for the only model. `cure` is the hint if there are several. Models
    on demand count whether they are in memory or not, and only `find` loads one."""

    def __init__(self, engine: Engine, bridge: Bridge, name: str, cure: str, *, on_demand: bool = False) -> None:
        self._on_demand = on_demand
        self._engine = engine
        self._bridge = bridge
        self.configured = name
        self._cure = cure
        self._only = ""
        # A model that served at the last look, if none is named and the only one is not known.
        self._seen = ""

    def find(self, version: int = -1) -> ServedModel:
        """The model's `version`, -1 for the latest. Raises ModelNotReady without a model, ConfigInvalid if there are
        several, and the engine's lookup errors.

        The only model is looked for once, and again after it was unloaded.
        """
        name = self.configured or self._only
        if name:
            try:
                return self._engine.model(name, version)
            except ServerError:
                if self.configured:
                    self._refuse_while_loading()
                    raise
                if self._serves(name):
                    raise
        return self._engine.model(self._only_name(), version)

    def is_ready(self) -> bool:
        """True if the named model serves, or, without a name, any model."""
        name = self.configured or self._only or self._seen
        if name and self._serves(name):
            return True
        if self.configured:
            return False
        # `run_long`: the threads of `run` may all be busy with large bodies, and a probe's time is short.
        index = self._bridge.run_long(self._engine.repository_index, not self._on_demand)
        # Remembered: to ask an engine in another process takes as long as that is busy, and front ends know the model.
        self._seen = index[0].name if index else ""
        return bool(index)

    def _serves(self, name: str) -> bool:
        try:
            if self._on_demand:
                self._engine.is_model_ready(name)
            else:
                self._engine.model(name)
        except ModelCold:
            return True
        except ServerError:
            return False
        return True

    def _refuse_while_loading(self) -> None:
        if self._engine.phase().name in (Phase.STARTING, Phase.LOADING):
            raise _loading()

    def _only_name(self) -> str:
        # While models load, the first one that is ready would look like the only one.
        self._refuse_while_loading()
        was_down = self._engine.phase().name is Phase.ENGINE_DOWN
        index = self._bridge.run(self._engine.repository_index, not self._on_demand)
        names = sorted({entry.name for entry in index})
        if was_down:  # the index is that of an engine that starts again, and has not said yet how far it is
            raise _loading()
        if not names:
            raise ModelNotReady("no model is loaded", hint="the log says why, and so does the answer to a health probe")
        if len(names) > 1:
            listed = ", ".join(names[:_SHOWN]) + (" …" if names[_SHOWN:] else "")
            raise ConfigInvalid(f"there are several models: {listed}", hint=self._cure)
        self._only = names[0]
        return self._only


def _loading() -> ModelLoading:
    return ModelLoading("the models are still being loaded", hint="wait until the server is ready")
