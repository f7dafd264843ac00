"""Generates docs/settings.md from the settings: `python -m trident.app.docs.settings_page > docs/settings.md`."""

from __future__ import annotations

from itertools import groupby

from trident.adapters.common.options import Option
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS

_HEAD = """\
# Settings

Generated from `app/settings/groups.py` and the platforms' rows in `adapters`; do not edit it. `trident serve
--help=all` prints the same, `--help` the common options, and `--help=GROUP` those of one section, such as
`--help=http`.

`trident serve` takes tritonserver's option names, as `--name=value` or `--name value`, or a variable for each. The
command line overrides the environment, which overrides the platform ([sagemaker.md](sagemaker.md)), which overrides the
default. At startup the server prints every setting that is not at its default, with its source.

* The variable of a repeatable option takes several values, separated by semicolons or line breaks. Values on the
  command line replace those of the variable.
* An empty variable counts as not set, except `CUDA_VISIBLE_DEVICES`.
* A misspelled option or `TRIDENT_` variable prevents the start; the message names the closest known one.
* Booleans are `true`, `on`, `1` and `false`, `off`, `0`, in upper or lower case.

## Completion in a shell

`trident completion SHELL` prints a script that completes commands, options, their values, and paths. Print it again
after an update.

* bash: `trident completion bash > ~/.local/share/bash-completion/completions/trident`. Without the package
  bash-completion let `~/.bashrc` source the file.
* zsh: `trident completion zsh > ~/.zfunc/_trident`, with `fpath+=~/.zfunc` before `compinit` in `~/.zshrc`.
* fish: `trident completion fish > ~/.config/fish/completions/trident.fish`
"""
_UNUSED_HEAD = """\
## Without effect

These options of tritonserver are accepted and their values are checked, so that a tritonserver command line works; the
log names the given ones. Their variables are `TRIDENT_<OPTION>` too.
"""


def settings_page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for section, options in groupby(SERVER_OPTIONS.values(), key=lambda each: each.section):
        rows = "".join(_row(each) for each in options)
        parts.append(f"## {section}\n\n| option | variable | default | meaning |\n|---|---|---|---|\n{rows}")
    names = "".join(f"* {section}: {', '.join(flags)}\n" for section, flags in _unused().items())
    return "\n".join([*parts, f"{_UNUSED_HEAD}\n{names}"])


def _row(option: Option) -> str:
    name = f"`{_cell(option.spelling)}`" if option.flag else ""
    default = "repeatable" if option.repeatable else _cell(option.default_text)
    return f"| {name} | `{option.variable}` | {default} | {_prose(option.help)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    return _cell(text).replace("<", "&lt;")


def _unused() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for each in UNUSED_OPTIONS:
        sections.setdefault(each.section, []).append(f"`--{each.flag}`")
    return sections


if __name__ == "__main__":
    print(settings_page(), end="")
