"""What the platform's variables say of the server itself, as options of its command line.

Source: docs/spec/vertex.md section B1; docs/spec/server-options.md section 2 "Vertex AI".
"""

from __future__ import annotations

from collections.abc import Mapping

from adapters.common.option_text import OptionText
from adapters.vertex.settings import HTTP_PORT, MODE, STORAGE_URI

# The value goes to the option as it is. Triton reads these wherever it runs.
_VERBATIM = {HTTP_PORT: "vertex-ai-port", STORAGE_URI: "model-repository"}


def server_options(environ: Mapping[str, str], *, on_platform: bool) -> list[OptionText]:
    """What the variables say. `on_platform`: this is a container of the platform, or rehearses one."""
    found = []
    if on_platform:
        found += [OptionText("allow-vertex-ai", "true", MODE), OptionText("allow-http", "false", MODE)]
    for name, flag in _VERBATIM.items():
        text = environ.get(name, "").strip()
        if text:
            found.append(OptionText(flag, text, name))
    return found
