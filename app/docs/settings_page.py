"""Generates docs/settings.md from the settings: `python -m trident.app.docs.settings_page > docs/settings.md`."""

from __future__ import annotations

from itertools import groupby

from trident.adapters.common.options import Option
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS

_HEAD = """\
# Settings

Generated from `app/settings/groups.py` and the platforms' rows in `adapters`; do not edit it. `trident serve
--help=all` prints the same, `--help` the common options, `--help=http` those of a section.

`trident serve` takes tritonserver's options as `--name=value` or `--name value`, or a variable for each. The command
line overrides the environment, which overrides the platform, which overrides the default (in parentheses). The server
prints every setting that is not at its default, with its source.

* Variables of repeatable options take values separated by semicolons or line breaks; the command line replaces them.
* An empty variable counts as not set, except `CUDA_VISIBLE_DEVICES`.
* A misspelled option or `TRIDENT_` variable prevents the start; the message names the closest known one.
* Booleans are `true`, `on`, `1` and `false`, `off`, `0`, in any case.

## Completion in a shell

Print the script again after an update.

* bash: `trident completion bash > ~/.local/share/bash-completion/completions/trident`, or source it in `~/.bashrc`
* zsh: `trident completion zsh > ~/.zfunc/_trident`, with `fpath+=~/.zfunc` before `compinit` in `~/.zshrc`
* fish: `trident completion fish > ~/.config/fish/completions/trident.fish`
"""
_UNUSED_HEAD = """\
## Without effect

Accepted and checked, as options and as `TRIDENT_<OPTION>`, so that a tritonserver command line works; the log
names the given ones.
"""


def settings_page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for section, options in groupby(SERVER_OPTIONS.values(), key=lambda each: each.section):
        rows = "".join(_row(each) for each in options)
        parts.append(f"## {section}\n\n{rows}")
    names = "".join(f"* {section}: {', '.join(flags)}\n" for section, flags in _unused().items())
    return "\n".join([*parts, f"{_UNUSED_HEAD}\n{names}"])


def _row(option: Option) -> str:
    names = [f"`{name}`" for name in (option.spelling if option.flag else "", option.variable) if name]
    default = "repeatable" if option.repeatable else option.default_text
    return f"* {', '.join(names)}{f' ({default})' if default else ''}: {option.help.replace('<', '&lt;')}\n"


def _unused() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for each in UNUSED_OPTIONS:
        sections.setdefault(each.section, []).append(f"`--{each.flag}`")
    return sections


if __name__ == "__main__":
    print(settings_page(), end="")
