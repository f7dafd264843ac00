"""`trident emulate sagemaker`: the platform around the server, on this machine."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.command_line import CommandLine
from app.option_kinds import FLAG, PORT, BadValue, Kind
from app.options import BadOption, Option

_PLATFORM = "sagemaker"
_VARIABLES_AT_MOST = 100
_VARIABLE_BYTES_AT_MOST = 1024
_ALL_BYTES_AT_MOST = 32 << 10
_EXAMPLE = """\
  client = boto3.client("sagemaker-runtime", endpoint_url="{url}", region_name="us-east-1",
                        aws_access_key_id="any", aws_secret_access_key="any")
  client.invoke_endpoint(EndpointName="any", Body=…)"""


def _variable(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise BadValue(f"--env takes NAME=VALUE, not '{text}'")
    return text


def _own(flag: str, kind: Kind[Any], default: Any, help: str) -> Option:
    repeatable = default == ()
    return Option(flag=flag, kind=kind, help=help, section="", variable="", default=default, repeatable=repeatable)


_ACCEPTED = (
    _own("multi-model", FLAG, False, "A multi-model endpoint: MODEL is the folder of its archives."),
    _own("port", PORT, 0, "Port of the runtime API; 0 finds a free one."),
    _own("env", Kind("NAME=VALUE", _variable), (), "A variable of the model's environment."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateOptions:
    """`model` is a folder or an archive, with `multi_model` a folder of archives; `port` 0 is any."""

    model: Path
    multi_model: bool = False
    port: int = 0
    variables: dict[str, str] = field(default_factory=dict)


def emulate(arguments: Sequence[str]) -> int:
    """Run until SIGINT or SIGTERM; the exit status is 1 if a limit of the platform was broken, else 0.

    Raises BadOption, and ConfigInvalid for a model that cannot be used. Call it from the main thread.
    """
    options = read_emulate_options(arguments)
    # Imported here: nothing else of the command needs it.
    from adapters.sagemaker.emulator.emulator import Emulator, EmulatorOptions
    from app.settings import process_environment

    emulator = Emulator(
        EmulatorOptions(
            model=options.model,
            multi_model=options.multi_model,
            api_port=options.port,
            # -P: a folder `app` where the person happens to be is none of ours.
            command=[sys.executable, "-P", "-m", "app"],
            environment=process_environment(),
            variables=options.variables,
        ),
        sys.stdout,
        sys.stderr,
    )
    with _stop_signals() as stopped:
        return emulator.run(stopped, lambda url: print(_EXAMPLE.format(url=url), flush=True))


def read_emulate_options(arguments: Sequence[str]) -> EmulateOptions:
    """The options of the arguments after `emulate`. Raises BadOption."""
    given, others = CommandLine(_ACCEPTED).split(arguments)
    values: dict[str, Any] = {}
    for option, text in given:
        try:
            value = option.kind.parse(text)
        except BadValue as error:
            raise BadOption.of(f"--{option.flag}", str(error)) from None
        values[option.flag] = (*values.get(option.flag, ()), value) if option.repeatable else value
    if others[:1] != [_PLATFORM]:
        raise BadOption(f"a platform must be named: trident emulate {_PLATFORM} MODEL")
    if len(others) != 2:
        raise BadOption("one model must be named: trident emulate sagemaker MODEL_DIR_OR_TARBALL")
    return EmulateOptions(
        model=Path(others[1]),
        multi_model=values.get("multi-model", False),
        port=values.get("port", 0),
        variables=_checked_variables(values.get("env", ())),
    )


def _checked_variables(texts: Sequence[str]) -> dict[str, str]:
    """The variables by name, within what the platform lets a model's environment be."""
    variables = {name: value for name, _, value in (text.partition("=") for text in texts)}
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


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, for as long as this lasts."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)
