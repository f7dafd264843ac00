"""The command `trident`: `serve`, and the commands of tools/, found by name.

Heavy modules are imported when they are needed, so that `--version` and `--help` answer at once.
"""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from trident.adapters.common.options import BadOption
from trident.app.process.environment import end_at_stop_signals, pass_over_stray_signals
from trident.app.version import BUILD, VERSION
from trident.core.errors import ServerError

if TYPE_CHECKING:
    from trident.app.settings.server import ServerSettings

    Serve = Callable[[ServerSettings], int]

# The commands beside `serve`, found by name, so that a server imports none of them.
_TOOLS = "trident.tools.commands"
_HELP = frozenset({"--help", "-h"})
_HELP_ABOUT = "--help="
_VERSION = frozenset({"--version", "version"})
_FAILED = 1


def serve(settings: ServerSettings) -> int:
    """Configure the log, log the warnings of the settings, and serve. Returns the exit status."""
    import logging
    from dataclasses import replace

    from trident.app.process.environment import collect_rarely, has_colours, let_openmp_sleep, write_no_bytecode
    from trident.app.process.files import IN_MEMORY, temporary_directory
    from trident.app.process.stray_output import log_stray_messages
    from trident.core.backends.cpu_budget import available_cores, may_spin
    from trident.core.observability.log import configure_logging, log_failure

    collect_rarely()
    if not may_spin(available_cores()):
        let_openmp_sleep()
    if settings.model_signature:
        write_no_bytecode()
    try:
        configure_logging(replace(settings.log_options, colour=has_colours()))
        if settings.console:
            from trident.core.observability.log_ring import keep_log_lines
            from trident.core.observability.refusals import keep_refusals

            keep_log_lines()
            keep_refusals()
        log_stray_messages()
        log = logging.getLogger("trident.cli")
        for warning in settings.warnings:
            log.warning("%s", warning)
        if settings.without_effect:
            log.warning("without effect here: %s", ", ".join(settings.without_effect))
        if temporary_directory() == IN_MEMORY:
            log.warning("temporary files are kept in memory, in %s; set TMPDIR to use another directory", IN_MEMORY)
        from trident.app.serve import serve as serve_site

        return serve_site(settings)
    except ServerError as error:
        log_failure(f"{error.code.value} - {error.message}", error.hint)
        return _FAILED


def main(argv: Sequence[str] | None = None, *, serve: Serve = serve) -> int:
    """Run the command in `argv`, the arguments after the program's name; None: those of the process.

    Returns the exit status: 0, or 1 with the reason on stderr.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments:
            print(import_module(_TOOLS).usage(), end="", file=sys.stderr)
            return _FAILED
        status = _run(arguments[0], arguments[1:], serve, is_whole_process=argv is None)
        sys.stdout.flush()
        return status
    except BadOption as error:
        return _say(str(error))
    except KeyboardInterrupt:
        return _FAILED
    except BrokenPipeError:  # `| head` has read enough; at its end Python would write the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except ServerError as error:
        return _say(f"error: {error.message}", error.hint)
    except PermissionError as error:
        from trident.core.repository.repository import chmod_hint

        return _say(f"error: {error.strerror}: {error.filename}", chmod_hint(error.filename))


def _run(first: str, others: list[str], serve: Serve, *, is_whole_process: bool) -> int:
    if first in _VERSION:
        print(f"trident {VERSION} ({BUILD})")
        return 0
    if first == "help":  # of a command, or of all
        first, others = (others[0], ["--help"]) if others else ("--help", [])
    # A tritonserver command line has options and no command.
    command = "serve" if first.startswith("-") and first not in _HELP else first
    arguments = others if command == first else [first, *others]
    topic = next((each.partition("=")[2] for each in arguments if each.startswith(_HELP_ABOUT)), "")
    if first in _HELP:
        print(import_module(_TOOLS).usage(), end="")
        return 0
    asks_for_help = bool(topic or _HELP & set(arguments))
    if asks_for_help and (command == "serve" or (command == "doctor" and topic)):
        from trident.app.settings.usage import serve_usage

        print(serve_usage(topic), end="")
        return 0
    if command == "serve":
        if is_whole_process:
            end_at_stop_signals()
            pass_over_stray_signals()
        from trident.app.settings.reading import read_settings, with_repositories

        if first != "serve":
            return serve(read_settings(arguments))
        from trident.app.serve import repositories_around

        with repositories_around() as around:
            return serve(read_settings(with_repositories(arguments, around)))
    tools = import_module(_TOOLS)
    if command not in tools.COMMANDS:
        found = difflib.get_close_matches(first, tools.NAMES, n=1)
        cure = f"did you mean `trident {found[0]}`?" if found else "see `trident --help`"
        raise BadOption(f"Unexpected argument: {first}\n{cure}")
    if asks_for_help:
        print(tools.help_of(command), end="")
        return 0
    if command in ("bench", "tune") and is_whole_process:
        # Both start servers, which must end with them.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    status: int = tools.run(command, arguments)
    return status


def _say(failure: str, hint: str | None = None) -> int:
    from trident.core.observability.log import say

    say(f"{failure}\nhint: {hint}" if hint else failure, sys.stderr)
    return _FAILED
