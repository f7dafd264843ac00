"""docs/settings.md, made from the settings themselves: `python -m app.docs.settings_page > docs/settings.md`."""

from __future__ import annotations

from itertools import groupby

from app.settings.option import Option
from app.settings.server import SERVER_OPTIONS
from app.settings.unused import UNUSED_OPTIONS
from app.settings.usage import default_text, spelled

_HEAD = """\
# Settings

Made from `app/settings/groups/`; do not edit it here. `trident serve --help` prints the same.

`trident serve` takes tritonserver's option names, as `--name=value` or `--name value`; a name may be cut short as long
as it stays unique. Every option can be set by its variable as well. The command line beats the environment, this beats
what the platform says ([sagemaker.md](sagemaker.md)), and that the default. At start the server prints every setting
that is not at its default and where it came from.

* A repeatable option takes several values in its variable, separated by semicolons or line breaks. Values on the
  command line replace those of the variable.
* An empty variable counts as not set, but for `CUDA_VISIBLE_DEVICES`.
* A misspelled option or `TRIDENT_` variable ends the start and names the nearest one. The variables that Kubernetes
  makes for a service named `trident` are left alone.
* Booleans are `true`, `on`, `1` and `false`, `off`, `0` in any case.
"""
_UNUSED_HEAD = """\
## Without effect

These options of tritonserver are accepted and their values checked, so that a known command line starts; the log names
those that were given. Their variables are `TRIDENT_<OPTION>`, too.
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
    name = f"`{_cell(spelled(option))}`" if option.flag else ""
    default = "repeatable" if option.repeatable else _cell(default_text(option))
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
