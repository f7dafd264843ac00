"""The completion script for zsh: sourced after compinit, or as the file _trident in a folder of $fpath."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from app.commands.completion.subcommands import (
    DEFAULT,
    SUBCOMMANDS,
    VERSION,
    Described,
    Subcommand,
    first_words,
    outline,
)
from app.settings.option import Option
from app.settings.option_types import Kind, Paths

_SCRIPT = """\
#compdef trident
# zsh completion for trident, printed by `trident completion zsh`

_trident_address() {{
    # A path of the kind $1, or the beginning of an address, which the other arguments are.
    local missing=1
    if [[ $1 == folders ]]; then
        _path_files -/ && missing=0
    else
        _files && missing=0
    fi
    compadd -S '' -- ${{@[2,-1]}} && missing=0
    return missing
}}

_trident() {{
    local curcontext=$curcontext command={default} index
    local -a state line
    typeset -A opt_args
    if (( CURRENT == 2 )) && [[ $PREFIX != -* ]]; then
        local -a commands=({commands})
        _describe command commands
        return
    fi
    if [[ $words[2] != -* ]]; then
        command=$words[2]
        shift words
        (( CURRENT-- ))
    fi
    case $command in
{nested}
    esac
    case $command in
{cases}
    esac
}}

if [[ $funcstack[1] == _trident ]]; then
    _trident "$@"
else
    compdef _trident trident
fi
"""
_NESTED = """\
        {name})
            # Options may come before the word.
            index=${{words[(I){plain}]}}
            if (( index > 1 && index < CURRENT )); then
                command="$command $words[index]"
                words[index]=()
                (( CURRENT-- ))
            elif [[ $PREFIX != -* ]]; then
                local -a further=({words})
                _describe word further
                return
            fi
            ;;"""
_CASE = """\
        {name})
            _arguments -S {specifications}
            ;;"""
_PATHS = {Paths.NONE: "", Paths.FOLDERS: "_path_files -/", Paths.FILES: "_files"}
_SPECIAL = re.compile(r"([\[\]:\\])")


def zsh_script() -> str:
    return _SCRIPT.format(
        default=DEFAULT,
        commands=_described(first_words()),
        nested="\n".join(
            _NESTED.format(
                name=each.name,
                words=_described(each.further),
                plain=f"({'|'.join(word.word for word in each.further)})",
            )
            for each in SUBCOMMANDS
            if each.further
        ),
        cases="\n".join(
            _CASE.format(name=_quoted(each.name), specifications=" \\\n                ".join(_specifications(each)))
            for each in SUBCOMMANDS
        ),
    )


def _specifications(command: Subcommand) -> Iterator[str]:
    for flag, option in command.flags():
        yield _specification(flag, option)
    if command.name == DEFAULT:
        yield _specification(f"--{VERSION.flag}", VERSION)
    if not command.further:
        yield _quoted(f"*:{_escaped(command.operand.name)}:{_action(command.operand)}")


def _specification(flag: str, option: Option) -> str:
    repeated = "*" if option.repeatable else ""
    value = f"=:{_escaped(option.kind.name)}:{_action(option.kind)}" if option.takes_value else ""
    equals, _, rest = value.partition(":")
    return _quoted(f"{repeated}{flag}{equals}[{_escaped(outline(option))}]{f':{rest}' if rest else ''}")


def _action(kind: Kind[object]) -> str:
    addresses = any(word.endswith("/") for word in kind.words)
    if addresses:
        # The space keeps _arguments from adding arguments of compadd.
        return f" _trident_address {kind.paths.value} {' '.join(_escaped(word) for word in kind.words)}"
    return f"({' '.join(kind.words)})" if kind.words else _PATHS[kind.paths]


def _described(words: Iterable[Described]) -> str:
    return " ".join(_quoted(f"{each.word}:{_escaped(each.help)}") for each in words)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
