"""A project and a location, and the names of the resources in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.settings.option import BadOption

_LOCATION = re.compile(r"[a-z]+(?:-[a-z0-9]+)+")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9.:-]*")
# Source: the fields `model_id` of UploadModelRequest and `endpoint_id` of CreateEndpointRequest.
_MODEL_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
_ENDPOINT_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,8}")
_VERSION = re.compile(r"[0-9]+|[a-z][a-z0-9-]{0,126}[a-z0-9]")
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Place:
    """A location of a project. Raises BadOption for an invalid project or location (`us-central1`)."""

    project: str
    location: str

    def __post_init__(self) -> None:
        if not _PROJECT.fullmatch(self.project):
            raise BadOption.of("--project", f"it takes a project's id or number, not '{self.project}'")
        if not _LOCATION.fullmatch(self.location):
            raise BadOption.of("--location", f"it takes a location such as us-central1, not '{self.location}'")

    @property
    def name(self) -> str:
        """The resource name of the location, the parent of all other resources."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def host(self) -> str:
        """The host of the location's API."""
        return f"{self.location}-aiplatform.googleapis.com"

    def endpoint(self, text: str) -> str:
        """The resource name of an endpoint; `text` is its id or its resource name. Raises BadOption."""
        return self._child("endpoint", text)

    def model(self, text: str) -> str:
        """The resource name of a model, with an optional `@VERSION` or `@ALIAS`. Raises BadOption."""
        name, at, version = text.partition("@")
        if at and not _VERSION.fullmatch(version):
            raise BadOption.of("--model", f"'{version}' is not a version; it takes ID, ID@3 or ID@an-alias")
        return f"{self._child('model', name)}{at}{version}"

    def _child(self, kind: str, text: str) -> str:
        start = f"{self.name}/{kind}s/"
        identity = text.removeprefix(start)
        if not _NAME.fullmatch(identity):
            raise BadOption.of(f"--{kind}", f"it takes an id, or a name that begins with {start}, not '{text}'")
        return start + identity


def new_model_id(text: str) -> str:
    """`text` as the id of a new model. Raises BadOption."""
    if not _MODEL_ID.fullmatch(text):
        raise BadOption.of(
            "--model-id", f"it takes up to 63 of a-z, 0-9, - and _, the first a letter or _, not '{text}'"
        )
    return text


def new_endpoint_id(text: str) -> str:
    """`text` as the id of a new endpoint. Raises BadOption."""
    if not _ENDPOINT_ID.fullmatch(text):
        raise BadOption.of(
            "--endpoint",
            f"a new one takes up to 63 of a-z, 0-9 and -, the first a letter, or up to 9 digits, not '{text}'",
        )
    return text
