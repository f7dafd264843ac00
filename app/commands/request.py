"""`trident request`: prints a request to a model of a server that runs, ready to be copied."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from trident.adapters.common.options import TEXT, BadOption, Option, choice
from trident.app.commands.server_answers import TOKEN as TOKEN_VARIABLE
from trident.app.commands.server_answers import Ask, NoAnswer, ask, server_url
from trident.app.process.environment import process_environment
from trident.app.settings.sources import read_values
from trident.core.config.spec import ModelSpec
from trident.core.http.sample_request import FORMS, TOKEN, Place, make_sample, parse_shape, write_request

_FORM = Option(
    flag="form", kind=choice("form", *FORMS), default="curl", own=True, help="What the request is for; default curl."
)
_SHAPE = Option(
    flag="shape",
    kind=TEXT,
    default=(),
    repeatable=True,
    own=True,
    help="INPUT:1,16, the shape of an input as it is sent; an optional input is sent if it has one.",
)
_VERSION = Option(flag="model-version", kind=TEXT, default="", own=True, help="Default the latest.")
_GRPC = Option(
    flag="grpc-url", kind=TEXT, default="", own=True, help="HOST:PORT of the gRPC port; default port 8001 of the host."
)
ACCEPTED = (_FORM, _SHAPE, _VERSION, _GRPC)
_OK = 200


def request(arguments: Sequence[str], ask: Ask = ask) -> int:
    """Print the request. The arguments are the model, perhaps the server's address, and options.

    Returns 0. Raises BadOption, also if the server does not answer, and InvalidRequest.
    """
    values, words = read_values(ACCEPTED, arguments)
    if not words:
        raise BadOption("a model is missing: trident request MODEL [URL]")
    model, *address = words
    url = server_url(address)
    version = values[_VERSION.flag]
    sample = make_sample(
        _spec(url, model, version, ask), version, dict(parse_shape(each) for each in values[_SHAPE.flag])
    )
    at = urlsplit(url)
    grpc = values[_GRPC.flag] or re.sub(r":[0-9]+$", "", at.netloc) + ":8001"
    headers = [TOKEN] if process_environment().get(TOKEN_VARIABLE) else []
    place = Place(url=url, grpc_url=f"{at.scheme}://{grpc}", headers=headers)
    sys.stdout.write(write_request(sample, values[_FORM.flag], place) + "\n")
    return 0


def _spec(url: str, model: str, version: str, ask: Ask) -> ModelSpec:
    """The model as the configuration that a server of Triton's protocol has completed describes it."""
    place = f"{url}/v2/models/{quote(model, safe='')}{f'/versions/{version}' if version else ''}/config"
    try:
        answer = ask("GET", place)
    except NoAnswer as error:
        raise BadOption(f"no answer from {url}: {error}; name the server: trident request {model} URL") from None
    if answer.status != _OK:
        raise BadOption(f"{place}: {answer.refusal}")
    # Both take a while to import.
    from google.protobuf.json_format import Parse, ParseError

    from trident.core.config.resolve import resolve_model_spec
    from trident.core.config.schema import ModelConfig

    try:
        # A later Triton's configuration may have fields that this version does not know.
        config = Parse(answer.body, ModelConfig(), ignore_unknown_fields=True)
        if not config.name:
            raise ValueError("it has no name")
        return resolve_model_spec(config, int(version or 0), {})
    except (ParseError, KeyError, ValueError) as error:
        raise BadOption(f"{place} is no model configuration: {error}") from None
