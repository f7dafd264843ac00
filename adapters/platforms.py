"""The platforms that a server may run on."""

from __future__ import annotations

from importlib import import_module

from trident.adapters.azureml.platform import AzureML
from trident.adapters.common.platform import Platform
from trident.adapters.sagemaker.platform import SageMaker
from trident.adapters.vertex.platform import VertexAI
from trident.core.errors import ConfigInvalid

BUILT_IN: tuple[Platform, ...] = (SageMaker(), VertexAI(), AzureML())
VARIABLE = "TRIDENT_PLATFORMS"


def platforms(named: str = "") -> tuple[Platform, ...]:
    """The platforms of this project, and those in `named`: `module:ATTRIBUTE`, separated by commas.

    Raises ConfigInvalid for a name that leads to no platform, or to a second one with the same name.
    """
    found = list(BUILT_IN)
    for text in filter(None, map(str.strip, named.split(","))):
        module, _, attribute = text.partition(":")
        try:
            platform = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigInvalid(
                f"{VARIABLE}: there is no platform at '{text}': {error}",
                hint="it takes module:ATTRIBUTE, where the module can be imported and the attribute is a Platform",
            ) from None
        if not isinstance(platform, Platform):
            raise ConfigInvalid(f"{VARIABLE}: {text} is not a Platform, but {type(platform).__name__}")
        if platform.name in {each.name for each in found}:
            raise ConfigInvalid(f"{VARIABLE}: {text} is the second platform with the name '{platform.name}'")
        found.append(platform)
    return tuple(found)
