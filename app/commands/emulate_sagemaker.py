"""The options of `trident emulate sagemaker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trident.adapters.common.options import FILE, PORT, SWITCH, TEXT, BadOption
from trident.app.commands.emulate import (
    CONTAINER_COMMAND,
    VARIABLE,
    own_option,
    variables_of,
)
from trident.app.emulators.sagemaker.api_model import read_settings_file
from trident.app.emulators.sagemaker.emulator import OPERATIONS, EmulatorOptions, Hosting
from trident.app.emulators.sagemaker.emulator import Emulator as Emulator
from trident.app.emulators.sagemaker.transform import TransformOptions
from trident.app.settings.reading import CACHE_OPTIONS, read_cloud_cache
from trident.app.settings.sources import read_values

SAGEMAKER = "sagemaker"
_VARIABLES_AT_MOST = 100
_VARIABLE_BYTES_AT_MOST = 1024
_ALL_BYTES_AT_MOST = 32 << 10
_EXAMPLE = """\
  client = boto3.client("sagemaker-runtime", endpoint_url="{url}", region_name="us-east-1",
                        aws_access_key_id="any", aws_secret_access_key="any")
  client.invoke_endpoint(EndpointName="any", Body=…)"""
ACCEPTED = (
    own_option("multi-model", SWITCH, False, "A multi-model endpoint: MODEL is the folder of its archives."),
    own_option("port", PORT, 0, "Port of the runtime API; 0 finds a free one."),
    own_option("env", VARIABLE, (), "A variable of the model's environment."),
    own_option("settings", FILE, "", "Parameters of the platform's API, by operation."),
    own_option("batch", TEXT, "", "Input of a batch transform job."),
    own_option("output", TEXT, "", "Folder of its output."),
    *CACHE_OPTIONS,
)


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> EmulatorOptions:
    """Read the options; `arguments` includes the word `sagemaker`, and `environment` is the process's.

    Raises BadOption.
    """
    values, others = read_values(ACCEPTED, arguments)
    if len(others) != 2 or others[0] != SAGEMAKER:
        raise BadOption("one model must be named: trident emulate sagemaker MODEL")
    settings = read_settings_file(Path(values["settings"]), OPERATIONS) if values["settings"] else {}
    hosting = Hosting(settings)
    return EmulatorOptions(
        model=others[1],
        hosting=hosting,
        batch=_batch(values, hosting),
        multi_model=values["multi-model"],
        api_port=values["port"],
        command=CONTAINER_COMMAND,
        environment=environment,
        variables=_checked_variables(values["env"]),
        cache=read_cloud_cache(values, environment),
    )


def _batch(values: Mapping[str, Any], hosting: Hosting) -> TransformOptions | None:
    given, output = values["batch"], values["output"]
    if bool(given) != bool(output):
        raise BadOption("a batch transform job has both an input and an output: --batch=INPUT --output=DIR")
    if given and (values["multi-model"] or values["port"]):
        raise BadOption.of("--batch", "a job has neither several models nor an endpoint")
    return TransformOptions(input=given, output=output, job=hosting.transform) if given else None


def _checked_variables(texts: Sequence[str]) -> dict[str, str]:
    """The variables by name. Raises BadOption for names or values over the platform's limits."""
    variables = variables_of(texts)
    sizes = [len(part.encode(errors="surrogateescape")) for pair in variables.items() for part in pair]
    if len(variables) > _VARIABLES_AT_MOST:
        raise BadOption.of("--env", f"the platform takes at most {_VARIABLES_AT_MOST} variables, not {len(variables)}")
    if max(sizes, default=0) > _VARIABLE_BYTES_AT_MOST or sum(sizes) > _ALL_BYTES_AT_MOST:
        raise BadOption.of(
            "--env",
            f"the platform takes names and values of at most {_VARIABLE_BYTES_AT_MOST} bytes each, "
            f"{_ALL_BYTES_AT_MOST} in all",
        )
    return variables


def example(options: EmulatorOptions, url: str) -> str:
    """An example of a call, for the user."""
    return _EXAMPLE.format(url=url)
