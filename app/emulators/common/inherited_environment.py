"""The variables that a container has from the emulator's process."""

from __future__ import annotations

from collections.abc import Mapping

HTTP_ADDRESS = "TRIDENT_HTTP_ADDRESS"
# The settings of servers and platforms on the person's machine are not in an image.
_NOT_INHERITED = ("AIP_", "SAGEMAKER_", "TRIDENT_")


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the settings of servers and platforms. It takes the place of the image's variables."""
    return {name: text for name, text in environment.items() if not name.startswith(_NOT_INHERITED)}
