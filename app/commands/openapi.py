"""`trident openapi`: prints the OpenAPI document of a port's routes, without a server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import cast

from trident.adapters.common.options import BadOption, options_by_field
from trident.adapters.platforms import VARIABLE, platforms
from trident.app.process.environment import process_environment
from trident.app.settings.reading import read_settings
from trident.app.version import VERSION


def openapi(arguments: Sequence[str]) -> int:
    """Print the document. The arguments are perhaps a platform, and options of serve.

    Returns 0. Raises BadOption.
    """
    name = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    options = list(arguments[1:] if name else arguments)
    known = {each.name: each for each in platforms(process_environment().get(VARIABLE, ""))}
    if name and name not in known:
        raise BadOption(f"there is no platform '{name}'; the platforms are {', '.join(known)}")
    flag = options_by_field(known[name].options)[known[name].switch].flag if name else "allow-http"
    settings = read_settings([*options, f"--{flag}=true"], needs_repository=False)
    # The applications are those of a server: they alone know their routes. No model is loaded.
    from trident.app.sites.applications import Applications, make_thread_bridge
    from trident.app.sites.engine_start import engine_options
    from trident.core.engine.in_process import make_engine
    from trident.core.http.application import V2Application
    from trident.core.http.openapi import openapi_document

    applications = Applications(settings, make_engine(engine_options(settings)), make_thread_bridge)
    ports = {each.name: own.port for each, own in settings.open_platforms.items()}
    application = cast(V2Application, applications.by_port()[ports.get(name, settings.http_port)])
    title = known[name].title if name else settings.server_id
    document = openapi_document(title, VERSION, application.documented_routes(), options=application.options)
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0
