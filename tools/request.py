"""`trident request` prints a request to a model of a server that runs, `trident openapi` the document of the routes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from trident.adapters.common.options import TEXT, BadOption, Option, choice, options_by_field
from trident.adapters.platforms import VARIABLE, platforms
from trident.app.process.environment import process_environment
from trident.app.settings.reading import read_settings
from trident.app.version import VERSION
from trident.core.http.sample_request import FORMS, TOKEN, Place, make_sample, parse_shape, write_request
from trident.tools.ask import TOKEN as TOKEN_VARIABLE
from trident.tools.ask import Ask, ask, model_config, server_url, spec_of
from trident.tools.options import read_values

_own = Option.of_command
_FORMS = (
    "curl, curl-binary, http or grpc (Triton's clients for Python), perf-analyzer (a file for its --input-data), or a "
    "platform (its SDK for Python); default curl."
)
_SHAPES = "INPUT:1,16, the shape of an input as it is sent; an optional input is sent if it has one."
_FORM = _own("form", choice("form", *FORMS), "curl", _FORMS)
_SHAPE = _own("shape", TEXT, (), _SHAPES, repeatable=True)
_VERSION = _own("model-version", TEXT, "", "Default the latest.")
_GRPC = _own("grpc-url", TEXT, "", "HOST:PORT of the gRPC port; default port 8001 of the host.")
ACCEPTED = (_FORM, _SHAPE, _VERSION, _GRPC)


def request(arguments: Sequence[str], ask: Ask = ask) -> int:
    """Print the request. The arguments are the model, perhaps the server's address, and options.

    Returns 0. Raises BadOption, ModelNotReady and InvalidRequest.
    """
    values, words = read_values(ACCEPTED, arguments)
    if not words:
        raise BadOption("a model is missing: trident request MODEL [URL]")
    model, *address = words
    url = server_url(address)
    version = values[_VERSION.flag]
    spec = spec_of(model_config(url, model, version, ask), version, url)
    sample = make_sample(spec, version, dict(parse_shape(each) for each in values[_SHAPE.flag]))
    at = urlsplit(url)
    grpc = values[_GRPC.flag] or re.sub(r":[0-9]+$", "", at.netloc) + ":8001"
    headers = [TOKEN] if process_environment().get(TOKEN_VARIABLE) else []
    place = Place(url=url, grpc_url=f"{at.scheme}://{grpc}", headers=headers)
    sys.stdout.write(write_request(sample, values[_FORM.flag], place) + "\n")
    return 0


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
