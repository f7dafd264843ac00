"""The options of `trident emulate azureml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trident.adapters.common.options import PORT, BadOption, integer
from trident.app.commands.emulate import (
    CONTAINER_COMMAND,
    VARIABLE,
    own_option,
    split_arguments,
    variables_of,
)
from trident.app.emulators.azureml import Emulator as Emulator
from trident.app.emulators.azureml import EmulatorOptions
from trident.app.settings.sources import read_values

AZUREML = "azureml"
_LONGEST_MS = 180_000
_EXAMPLE = "  curl -H 'Content-Type: application/json' -d @request.json {url}/score"
ACCEPTED = (
    own_option("port", PORT, 0, "Port of the endpoint; 0 finds a free one."),
    own_option("env", VARIABLE, (), "A variable of the deployment."),
    own_option("request-timeout-ms", integer(1, _LONGEST_MS), 5000, "Milliseconds that a call may take."),
)


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> EmulatorOptions:
    """Read the options; `arguments` includes the word `azureml`, and those after `--` belong to the container.

    `environment` is the process's. Raises BadOption.
    """
    ours, theirs = split_arguments(arguments)
    values, others = read_values(ACCEPTED, ours)
    if len(others) != 2 or others[0] != AZUREML:
        raise BadOption("one model must be named: trident emulate azureml DIR")
    return EmulatorOptions(
        model=others[1],
        command=[*CONTAINER_COMMAND, "serve"],
        arguments=theirs,
        environment=environment,
        variables=variables_of(values["env"]),
        api_port=values["port"],
        request_timeout_s=values["request-timeout-ms"] / 1000,
    )


def example(options: EmulatorOptions, url: str) -> str:
    """An example of a call, for the user."""
    return _EXAMPLE.format(url=url)
