"""`trident completion SHELL`: prints the script by which a shell completes command lines of `trident`.

shtab writes the scripts, from an argparse parser that is made of the option tables and parses nothing.
"""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import shtab

from trident.adapters.common.options import FILE, REPOSITORY, SWITCH, TEXT, BadOption, Kind, Option, Paths
from trident.adapters.platforms import BUILT_IN
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS
from trident.app.settings.usage import HELP_TOPIC
from trident.tools.commands import options_of, usage_lines
from trident.tools.doctor import JSON
from trident.tools.emulators.command import AZUREML_OPTIONS, SAGEMAKER_OPTIONS, VERTEX_OPTIONS

SHELLS = ("bash", "zsh", "fish")
_NO_EFFECT = "Accepted for tritonserver command lines, without effect."
_SOURCE = Kind("string", TEXT.parse, REPOSITORY.words, Paths.FILES)
_FOLDER = Kind("string", TEXT.parse, (), Paths.FOLDERS)
_ARTIFACTS = Kind("string", TEXT.parse, ("gs://",), Paths.FOLDERS)
_URL = Kind("URL", TEXT.parse, ("http://", "https://"))
_PLATFORMS = tuple(each.name for each in BUILT_IN)
_PATHS = {
    # fish takes the name of an option for a part of the path.
    Paths.FOLDERS: shtab.DIRECTORY
    | {"fish": "(__fish_complete_directories (string replace -r -- '^--[^=]*=' '' (commandline -ct)))"},
    Paths.FILES: shtab.FILE | {"fish": "(__fish_complete_path)"},
}
# shtab takes an option and its value for two words. bash makes three of --name=value, or one if a user changed
# COMP_WORDBREAKS.
_BASH_EQUALS = """

_trident() {
    local word current
    local -a words
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        current=$word
        case $word in
            =) current='' ;;
            --*=*) words+=("${word%%=*}" "${word#*=}") ;;
            *) words+=("$word") ;;
        esac
    done
    [[ $word == = ]] && words+=('')
    COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    _shtab_trident
    [[ $word == --*=* ]] && COMPREPLY=("${COMPREPLY[@]/#/${word%%=*}=}")
    # The rest of an address follows at once.
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2>/dev/null
    return 0
}

complete -F _trident trident
"""


class CommandLine(NamedTuple):
    """A command of `trident`: `name` is the words that begin its command lines, `operand` its words without dashes."""

    name: str
    help: str
    options: Iterable[Option] = ()
    operand: Kind[str] | None = None


_HELP = Option(flag="help", kind=SWITCH, help="Print the usage.", own=True)
_VERSION = Option(flag="version", kind=SWITCH, help="Print the version.", own=True)
_SERVE = (
    *(each for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag),
    Option(flag="help", kind=HELP_TOPIC, help="Print the common options, or a group.", own=True),
)
_SAGEMAKER = (*SAGEMAKER_OPTIONS, _HELP)
_VERTEX = (*VERTEX_OPTIONS, _HELP)
_AZUREML = (*AZUREML_OPTIONS, _HELP)
_OPERANDS = {
    **{"serve": _SOURCE, "import": _SOURCE, "validate": REPOSITORY, "doctor": REPOSITORY},
    **{"request": _URL, "status": _URL, "top": _URL, "bench": FILE, "trace": FILE},
    "openapi": Kind("platform", TEXT.parse, _PLATFORMS),
    "completion": Kind("shell", TEXT.parse, SHELLS),
    **{"emulate sagemaker": _SOURCE, "emulate vertex": _ARTIFACTS, "emulate azureml": _FOLDER},
}
_OPTIONS: dict[str, Iterable[Option]] = {
    # A command line that begins with an option has no command.
    "": (*_SERVE, _VERSION),
    **{"serve": _SERVE, "doctor": (JSON, *_SERVE), "openapi": _SERVE, "completion": (_HELP,), "version": ()},
    # The options of a platform may stand before its name.
    "emulate": {each.flag: each for each in (*_AZUREML, *_VERTEX, *_SAGEMAKER)}.values(),
    **{"emulate sagemaker": _SAGEMAKER, "emulate vertex": _VERTEX, "emulate azureml": _AZUREML},
}


def _commands() -> Iterator[CommandLine]:
    lines = {"": "", "emulate": "run an endpoint of a platform on this machine"}
    for line, what in usage_lines():
        words = line.split()
        lines[" ".join(words[: 2 if words[0] == "emulate" else 1])] = what
    for name, what in lines.items():
        if not name.startswith("-"):
            options = _OPTIONS[name] if name in _OPTIONS else (*options_of(name), _HELP)
            yield CommandLine(name, what, options, _OPERANDS.get(name))


COMMANDS = tuple(_commands())


def completion(arguments: Sequence[str]) -> int:
    """Print the script for the shell that is the only argument. Raises BadOption."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise BadOption(f"a shell must be named: trident completion {'|'.join(SHELLS)}")
    (shell,) = arguments
    script = shtab.complete(_parser(shell), shell)
    if shell == "bash":
        script += _BASH_EQUALS
    if shell == "zsh":
        # shtab has zsh complete only the first of several operands.
        script = script.replace('"(*)::', '"*:')
    print(script)
    return 0


def outline(option: Option) -> str:
    """The first sentence of the help text, on one line."""
    text = option.help or _NO_EFFECT
    return text.partition(". ")[0].partition("; ")[0].removesuffix(".")


def _parser(shell: str) -> ArgumentParser:
    parsers: dict[str, ArgumentParser] = {}
    groups: dict[str, _SubParsersAction[ArgumentParser]] = {}
    for command in COMMANDS:
        outer, _, word = command.name.rpartition(" ")
        if not word:
            parser = ArgumentParser("trident", add_help=False)
        else:
            if outer not in groups:
                groups[outer] = parsers[outer].add_subparsers()
            parser = groups[outer].add_parser(word, help=command.help, add_help=False)
        parsers[command.name] = parser
        for option in command.options:
            # zsh completes --name=value only if the sign is part of the name.
            equals = "=" if shell == "zsh" and option.takes_value else ""
            action = parser.add_argument(
                *(f"--{name}{equals}" for name in option.names),
                action="append" if option.repeatable else "store" if option.takes_value else "store_true",
                dest=option.flag,
                help=outline(option).replace("%", "%%"),
            )
            _let_complete(action, option.kind)
        if command.operand:
            _let_complete(parser.add_argument("operand", nargs="*", help=command.operand.name), command.operand)
    return parsers[""]


def _let_complete(action: Action, kind: Kind[Any]) -> None:
    paths = _PATHS.get(kind.paths)
    if paths and kind.words:
        action.complete = _paths_or_addresses(paths, kind.words)  # type: ignore[attr-defined]
    elif paths:
        action.complete = paths  # type: ignore[attr-defined]
    elif kind.words:
        action.choices = kind.words


def _paths_or_addresses(paths: dict[str, Any], beginnings: Iterable[str]) -> dict[str, Any]:
    words = " ".join(beginnings)
    # shtab tells bash that names with _dir or _file complete paths.
    name = "_trident" + paths["bash"].removeprefix("_shtab_compgen") + re.sub(r"\W+", "_", f" {words}")
    escaped = words.replace(":", "\\:")
    return {
        "bash": name,
        "zsh": name,
        "fish": f"{paths['fish']} {words}",
        "preamble": {
            "bash": f"""{name}() {{ {paths["bash"]} "$1"; compgen -W "{words}" -- "$1"; }}""",
            "zsh": f"""{name}() {{
  _alternative 'paths:path:{paths["zsh"]}' 'addresses:address:compadd -S "" {escaped}'
}}""",
        },
    }
