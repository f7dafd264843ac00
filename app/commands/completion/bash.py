"""The completion script for bash, 3.2 or newer, with or without the package bash-completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from app.commands.completion.subcommands import DEFAULT, SUBCOMMANDS, Subcommand, first_words
from app.settings.option import Option
from app.settings.option_types import Kind, Paths

# `begun` is what the current word has before its value. bash splits --name=value at the = unless a user changed
# COMP_WORDBREAKS, so both forms occur. bash 3.2, that of macOS, has no compopt and no mapfile.
_SCRIPT = """\
# bash completion for trident, printed by `trident completion bash`

_trident_value() {{
    # Sets words and paths for the option $2 of the command $1; fails if it takes no value.
    words='' paths=''
    case "$1 $2" in
{values}
        *) return 1 ;;
    esac
}}

_trident_operand() {{
    # Sets words and paths for a word of the command $1 that is not an option.
    words='' paths=''
    case "$1" in
        '') words={commands} ;;
{operands}
    esac
}}

_trident_options() {{
    # Sets words to the options of the command $1.
    case "$1" in
        '') words='--help --version '; _trident_more {default} ;;
        *) words=''; _trident_more "$1" ;;
    esac
}}

_trident_more() {{
    case "$1" in
{options}
    esac
}}

_trident() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
    local command='' option='' begun='' words='' paths='' index word
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${{COMP_WORDS[index]}}
        case "$command:$word" in
            {first}) command=$word ;;
{second}
            :-*) command={default} ;;
        esac
    done
    if [[ $current == '=' ]]; then
        option=$before current=''
    elif [[ $before == '=' ]]; then
        option=${{COMP_WORDS[COMP_CWORD - 2]}}
    elif [[ $current == --*=* ]]; then
        option=${{current%%=*}} begun=${{current%%=*}}= current=${{current#*=}}
    elif [[ $before == --* ]]; then
        option=$before
    fi
    COMPREPLY=()
    if [[ -n $option ]] && _trident_value "${{command:-{default}}}" "$option"; then
        :
    elif [[ $current == -* ]]; then
        _trident_options "$command"
    else
        _trident_operand "$command"
    fi
    while IFS= read -r word; do
        COMPREPLY+=("$begun$word")
    done < <(compgen -W "$words" -- "$current")
    if [[ -n $paths ]]; then
        while IFS= read -r word; do
            COMPREPLY+=("$begun$word")
        done < <(compgen "$paths" -- "$current")
        compopt -o filenames 2>/dev/null
    fi
    # A value follows at once, or the rest of an address.
    if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}}

complete -F _trident trident
"""
_COMPGEN = {Paths.NONE: "''", Paths.FOLDERS: "-d", Paths.FILES: "-f"}


def bash_script() -> str:
    return _SCRIPT.format(
        values="\n".join(_values()),
        commands=_quoted(each.word for each in first_words()),
        operands="\n".join(f"        '{each.name}') {_operand(each)} ;;" for each in SUBCOMMANDS),
        options="\n".join(f"        '{each.name}') words+={_quoted(_spellings(each))} ;;" for each in SUBCOMMANDS),
        first=" | ".join(f":{each.word}" for each in first_words()),
        second="\n".join(
            f"            '{outer}:{inner}') command='{each.name}' ;;"
            for each in SUBCOMMANDS
            if len(each.words) > 1
            for outer, inner in [each.words]
        ),
        default=DEFAULT,
    )


def _values() -> Iterator[str]:
    """A case for each set of values, with the options that take them."""
    taken = [
        (_completed(option.kind), f"'{command.name} {flag}'")
        for command in SUBCOMMANDS
        for flag, option in command.flags()
        if option.takes_value
    ]
    for values, options in groupby(sorted(taken), key=lambda each: each[0]):
        yield f"        {' | '.join(option for _, option in options)}) {values} ;;"


def _completed(kind: Kind[object]) -> str:
    return f"words={_quoted(kind.words)} paths={_COMPGEN[kind.paths]}"


def _operand(command: Subcommand) -> str:
    return f"words={_quoted(each.word for each in command.further)}" if command.further else _completed(command.operand)


def _spellings(command: Subcommand) -> Sequence[str]:
    return [_spelling(flag, option) for flag, option in command.flags()]


def _spelling(flag: str, option: Option) -> str:
    return f"{flag}=" if option.takes_value else flag


def _quoted(words: Iterator[str] | Sequence[str]) -> str:
    return f"'{' '.join(words)}'"
