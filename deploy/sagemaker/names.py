"""The names and tags of what a deployment makes. All names begin with the name of the endpoint.

Models and endpoint configurations cannot be changed, so their names end with a hash of their content: the same content
has the same name, another content another, and the old one is there until nobody needs it.
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
    """Raises BadSettings for what is no name of an endpoint, or too long for what is named after it."""
    if not _NAME.fullmatch(name):
        raise BadSettings(f"'{name}' is no name", hint="letters, digits and hyphens, a hyphen neither first nor last")
    if len(name) > _LONGEST_ENDPOINT:
        raise BadSettings(
            f"the name '{name}' has {len(name)} characters",
            hint=f"at most {_LONGEST_ENDPOINT}: {_HASH_DIGITS + 1} of the {_LONGEST} are for a hash",
        )
    return name


def content_name(endpoint: str, content: Mapping[str, Any]) -> str:
    """`endpoint`, and a hash of `content`, which JSON must be able to say."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{endpoint}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]}"


def content_names(endpoint: str) -> str:
    """The regular expression for all names that `content_name` may give."""
    return rf"{re.escape(endpoint)}-[0-9a-f]{{{_HASH_DIGITS}}}"


def resource_id(endpoint: str) -> str:
    """What Application Auto Scaling calls the one variant of the endpoint."""
    return f"endpoint/{endpoint}/variant/{VARIANT}"


def tagged(tags: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """The parameter for tags; none where there are none, since setting tags is a right of its own."""
    return {"Tags": tags} if tags else {}
