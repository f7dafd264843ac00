"""`trident emulate`: serve a model in a container of this machine as a cloud platform would."""

from __future__ import annotations

from collections.abc import Sequence

from trident.adapters.common.options import BadOption

_PLATFORMS = ("sagemaker", "vertex", "azureml")


def emulate(arguments: Sequence[str]) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP; the exit status is 1 if a limit of the platform was broken, else 0.

    Raises BadOption, and ConfigInvalid for a model that cannot be used. Call it from the main thread.
    """
    # Each platform's modules are imported only for that platform.
    platform = platform_of(arguments)
    if platform == "azureml":
        from trident.app.commands.emulate_azureml import emulate_azureml

        return emulate_azureml(arguments)
    if platform == "vertex":
        from trident.app.commands.emulate_vertex import emulate_vertex

        return emulate_vertex(arguments)
    from trident.app.commands.emulate_sagemaker import emulate_sagemaker

    return emulate_sagemaker(arguments)


def platform_of(arguments: Sequence[str]) -> str:
    """The first argument that is a platform's name; options may come before it. Raises BadOption."""
    for argument in arguments:
        if argument in _PLATFORMS:
            return argument
    raise BadOption(f"a platform must be named: {' or '.join(f'trident emulate {name} MODEL' for name in _PLATFORMS)}")
