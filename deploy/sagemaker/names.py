"""The names and tags of the resources of a deployment. All names begin with the name of the endpoint.

Models and endpoint configurations are immutable, so their names end with a hash of their content: equal contents have
equal names, and a changed one gets a new name beside the old one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from deploy.sagemaker.errors import BadSettings

VARIANT = "AllTraffic"
_HASH_DIGITS = 10
_LONGEST = 63
_LONGEST_ENDPOINT = _LONGEST - _HASH_DIGITS - 1
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


def checked_name(name: str) -> str:
    """Raises BadSettings for an invalid name of an endpoint, or one too long for the names derived from it."""
    if not _NAME.fullmatch(name):
        raise BadSettings(f"'{name}' is not a valid name", hint="use letters, digits and inner hyphens")
    if len(name) > _LONGEST_ENDPOINT:
        raise BadSettings(
            f"the name '{name}' has {len(name)} characters",
            hint=f"at most {_LONGEST_ENDPOINT} are allowed: {_HASH_DIGITS + 1} of {_LONGEST} are reserved for a hash",
        )
    return name


def content_name(endpoint: str, content: Mapping[str, Any]) -> str:
    """The name of `content`, which must be serializable as JSON: `endpoint` and a hash."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{endpoint}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def content_names(endpoint: str) -> str:
    """The regular expression for all names that `content_name` may return."""
    return rf"{re.escape(endpoint)}-[0-9a-f]{{{_HASH_DIGITS}}}"


def resource_id(endpoint: str) -> str:
    """The name that Application Auto Scaling uses for the endpoint's only variant."""
    return f"endpoint/{endpoint}/variant/{VARIANT}"


def tagged(tags: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """The parameter for tags; left out without tags, because setting tags needs an additional permission."""
    return {"Tags": tags} if tags else {}
