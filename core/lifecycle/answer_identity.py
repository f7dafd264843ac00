"""What decides the answers of a version besides the request: for a response cache that several servers share.

Source: docs/spec/schedulers.md section 3.7, "Redis".
"""

from __future__ import annotations

from hashlib import blake2b

from core.config.schema import ModelConfig
from core.lifecycle.version import ModelVersion


def answer_identity(version: ModelVersion) -> bytes | None:
    """A digest of the version's name, number, configuration and files, and of those of its steps.

    None if its files are not known, or have changed since they were loaded. Reads them: for loader threads.
    """
    files = version.content.digest() if version.content is not None else None
    steps = [answer_identity(step) for step in version.steps]
    if files is None or None in steps:
        return None
    parts = [repr((version.name, version.version)).encode(), _config(version.config), files, *filter(None, steps)]
    whole = blake2b()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def _config(config: ModelConfig) -> bytes:
    """The configuration without the parts that change while a version serves, and that decide no answer."""
    core = ModelConfig()
    core.CopyFrom(config)
    core.ClearField("instance_group")
    core.ClearField("version_policy")
    content: bytes = core.SerializeToString(deterministic=True)
    return content
