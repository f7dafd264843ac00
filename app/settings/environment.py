"""The variables that set options: which option each one gives, and with what texts.

`TRIDENT_<OPTION>` for every option, and a few names of others. Several values of a repeatable option are separated by
`;` or line breaks. An empty variable counts as not set, as compose files leave it, but for one whose emptiness means
something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from app.settings.command_line import nearest
from app.settings.option import PREFIX, BadOption, Option

# Kubernetes puts these into every pod beside a service named `trident` or `trident-…`: they are nobody's settings.
_SERVICE_LINK = re.compile(r"TRIDENT_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP|SCTP)\w*)", re.ASCII)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://", re.ASCII)
_SEPARATOR = re.compile(r"[;\r\n]+")


def given_variables(options: Iterable[Option], environ: Mapping[str, str]) -> list[tuple[Option, str, list[str]]]:
    """Every option that `environ` sets, with the variable's name and the texts of its values.

    Raises BadOption for a variable with our prefix that no option has.
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
