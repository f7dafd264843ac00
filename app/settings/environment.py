"""The environment variables that set options, and the texts of their values.

Every option has `TRIDENT_<OPTION>`, and a few have a variable of Triton's or CUDA's. Semicolons or line breaks separate
the values of a repeatable option. An empty variable counts as not set, because compose files leave variables empty,
unless the option says that an empty text is a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from app.settings.command_line import nearest
from app.settings.option import PREFIX, BadOption, Option

# Kubernetes sets these in every pod in the namespace of a service named `trident` or `trident-…`. They are no settings.
_SERVICE_LINK = re.compile(r"TRIDENT_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)", re.ASCII)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://", re.ASCII)
_SEPARATOR = re.compile(r"[;\r\n]+")


def given_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[tuple[Option, str, list[str]]]:
    """Every option that `environ` sets, with the name of the variable and the texts of its values.

    Raises BadOption for a variable with our prefix that belongs to no option.
    """
    known = {variable: each for each in options for variable in each.variables}
    found: list[tuple[Option, str, list[str]]] = []
    for name, text in environ.items():
        if _is_service_link(name, text):
            continue
        option = known.get(name)
        if option is not None:
            texts = [each for each in _SEPARATOR.split(text) if each] if option.repeatable else [text]
            found += [(option, name, texts)] if text or option.empty_counts else []
        elif name.startswith(PREFIX):
            raise BadOption.of(name, f"unknown variable{nearest(name, known)}")
    return found


def _is_service_link(name: str, text: str) -> bool:
    if not name.startswith(PREFIX):
        return False
    return bool(_SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text)))
