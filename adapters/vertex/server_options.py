"""The options of the server's command line that the platform's variables set.

Source: docs/spec/vertex.md section B1; docs/spec/server-options.md section 2 "Vertex AI".
"""

from __future__ import annotations

from collections.abc import Mapping

from adapters.common.option_text import OptionText
from adapters.vertex.settings import HTTP_PORT, MODE, STORAGE_URI

# The value of the variable is the value of the option. Triton reads these outside of the platform, too.
_VERBATIM = {HTTP_PORT: "vertex-ai-port", STORAGE_URI: "model-repository"}


def server_options(environ: Mapping[str, str], *, on_platform: bool) -> list[OptionText]:
    """The options that the variables set. `on_platform`: this is a container of the platform, or a rehearsal of one."""
    found = []
    if on_platform:
        found.append(OptionText("allow-vertex-ai", "true", MODE))
        found += [OptionText(closed, "false", MODE) for closed in ("allow-http", "allow-grpc")]
    for name, flag in _VERBATIM.items():
        text = environ.get(name, "").strip()
        if text:
            found.append(OptionText(flag, text, name))
    return found
