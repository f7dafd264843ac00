"""What a Vertex AI endpoint serves: the default model, within the limits that the settings give.

Source: docs/spec/vertex.md sections A4 and B2.
"""

from __future__ import annotations

from adapters.vertex.limits import SizeLimits
from adapters.vertex.settings import VertexSettings
from core.engine.protocol import Engine
from core.frontend.bridge import Bridge
from core.frontend.default_model import DefaultModel
from core.frontend.version_text import version_number

_CURE = "name one in --vertex-ai-default-model, or in 'parameters.model' of a request with instances"


class VertexEndpoint:
    """The state that the routes of one container share. Hub thread, or any one thread.

    `key_fields` are the members of an object instance that are no inputs.
    """

    def __init__(
        self, engine: Engine, bridge: Bridge, settings: VertexSettings, routed_model: str = "", routed_version: str = ""
    ) -> None:
        """`routed_model` and `routed_version` are named in the predict route, as images for v2 alone needed it; or "".

        Raises InvalidRequest for version 0.
        """
        self.settings = settings
        self.limits = SizeLimits(settings.max_request_size, settings.max_response_size)
        self.key_fields = frozenset((settings.key_field,)) if settings.key_field else frozenset()
        name = settings.default_model or routed_model
        self.default_model = DefaultModel(engine, bridge, name, _CURE)
        self.default_version = version_number(routed_version if name == routed_model else "")
