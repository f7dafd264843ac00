"""The completion script for fish, 3.0 or newer."""

from __future__ import annotations

from collections.abc import Iterator

from app.commands.completion.subcommands import DEFAULT, SUBCOMMANDS, VERSION, Subcommand, first_words, outline
from app.settings.option_types import Kind, Paths

_HEAD = """\
# fish completion for trident, printed by `trident completion fish`

function __trident_command
    # Prints the command of the line so far; nothing before there is one.
    set -l words (commandline -opc)
    set -l command
    for word in $words[2..-1]
        switch "$command:$word"
            case {first}
                set command $word
{second}
            case ':-*'
                set command {default}
        end
    end
    echo "$command"
end

function __trident_in
    test (__trident_command) = "$argv"
end

function __trident_serves
    contains -- (__trident_command) '' {default}
end

function __trident_folders
    # Older versions of fish take the name of an option for a part of the path.
    __fish_complete_directories (string replace -r -- '^--[^=]*=' '' (commandline -ct))
end

complete -c trident -e
complete -c trident -f
"""
_PATHS = {Paths.NONE: "", Paths.FOLDERS: "(__trident_folders)", Paths.FILES: "(__fish_complete_path)"}


def fish_script() -> str:
    head = _HEAD.format(
        first=" ".join(f"':{each.word}'" for each in first_words()),
        second="\n".join(
            f"            case '{outer}:{inner}'\n                set command '{each.name}'"
            for each in SUBCOMMANDS
            if len(each.words) > 1
            for outer, inner in [each.words]
        ),
        default=DEFAULT,
    )
    return head + "".join(f"complete -c trident {line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    for each in first_words():
        yield f"-n '__trident_in \"\"' -a {each.word} -d {_quoted(each.help)}"
    yield f"-n '__trident_in \"\"' -l {VERSION.flag} -d {_quoted(outline(VERSION))}"
    for command in SUBCOMMANDS:
        yield from _of_command(command)


def _of_command(command: Subcommand) -> Iterator[str]:
    within = f"-n '__trident_in {command.name}'"
    for each in command.further:
        yield f"{within} -a {each.word} -d {_quoted(each.help)}"
    operands = _values(command.operand)
    if operands:
        yield f"{within} -a {_quoted(operands)}"
    # A command line that begins with an option has no command.
    with_options = "-n __trident_serves" if command.name == DEFAULT else within
    for flag, option in command.flags():
        values = _values(option.kind)
        takes = f" -x{f' -a {_quoted(values)}' if values else ''}" if option.takes_value else ""
        yield f"{with_options} -l {flag.removeprefix('--')}{takes} -d {_quoted(outline(option))}"


def _values(kind: Kind[object]) -> str:
    return " ".join(filter(None, (*kind.words, _PATHS[kind.paths])))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
