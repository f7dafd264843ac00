"""Which model a platform's requests mean: the one that was named at start, or the only one there is.

Source: docs/spec/sagemaker.md sections B1 and B2; docs/spec/vertex.md section B2.
"""

from __future__ import annotations

from core.config.model_spec import ModelSpec
from core.engine.protocol import Engine
from core.errors import ConfigInvalid, ModelNotReady, ServerError
from core.frontend.bridge import Bridge
from core.lifecycle.serving_phase import Phase

_SHOWN = 10


class DefaultModel:
    """`configured` is the name that was given, "" for the only one. `cure` is the hint where there are several."""

    def __init__(self, engine: Engine, bridge: Bridge, name: str, cure: str) -> None:
        self._engine = engine
        self._bridge = bridge
        self.configured = name
        self._cure = cure
        self._only = ""

    def spec(self, version: int = -1) -> ModelSpec:
        """Raises ModelNotReady where there is none yet, ConfigInvalid where there are several, and what the engine
        says where it does not serve `version`.

        The only model is looked for once, and again when it is gone.
        """
        name = self.configured or self._only
        if name:
            try:
                return self._engine.model_spec(name, version)
            except ServerError:
                if self.configured:
                    self._refuse_while_loading()
                    raise
                if self._serves(name):
                    raise
        return self._engine.model_spec(self._find(), version)

    def is_ready(self) -> bool:
        """Whether the model that was named serves, or where none was, any at all."""
        name = self.configured or self._only
        if name and self._serves(name):
            return True
        # Not one of the bridge's own threads: those may all be at work on large bodies, and a probe has not long.
        return not self.configured and bool(self._bridge.run_long(self._engine.repository_index, True))

    def _serves(self, name: str) -> bool:
        try:
            self._engine.model_spec(name)
        except ServerError:
            return False
        return True

    def _refuse_while_loading(self) -> None:
        if self._engine.phase().name in (Phase.STARTING, Phase.LOADING):
            raise ModelNotReady("the models are still being loaded", hint="wait until the server is ready")

    def _find(self) -> str:
        # Before all are loaded the first one that is ready would look like the only one.
        self._refuse_while_loading()
        index = self._bridge.run(self._engine.repository_index, True)
        names = sorted({entry.name for entry in index})
        if not names:
            raise ModelNotReady("no model is loaded", hint="the log says why, and so does the answer to a health probe")
        if len(names) > 1:
            listed = ", ".join(names[:_SHOWN]) + (" …" if names[_SHOWN:] else "")
            raise ConfigInvalid(f"there are several models: {listed}", hint=self._cure)
        self._only = names[0]
        return self._only
