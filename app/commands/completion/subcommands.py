"""The commands of `trident` with their options and words, as a shell completes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.commands.doctor.command import JSON
from app.commands.emulate import sagemaker, vertex_options
from app.commands.trace import command as trace_command
from app.commands.validate import options as validate_options
from app.settings.option import Option
from app.settings.option_types import FILE, FLAG, REPOSITORY, TEXT, Kind, Paths
from app.settings.server import SERVER_OPTIONS
from app.settings.unused import UNUSED_OPTIONS
from app.settings.usage import HELP_TOPIC

SHELLS = ("bash", "zsh", "fish")
# The command of a command line that has options and no command.
DEFAULT = "serve"
_NO_EFFECT = "Accepted for tritonserver command lines, without effect."
_ARCHIVE = Kind("string", TEXT.parse, REPOSITORY.words, Paths.FILES)
_ARTIFACTS = Kind("string", TEXT.parse, ("gs://",), Paths.FOLDERS)


@dataclass(frozen=True, slots=True)
class Described:
    """A word, such as a command, and what it means."""

    word: str
    help: str


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One command: `words` begin its command lines, `operand` is the kind of its words that are not options.

    `further` are the words that may follow at once, such as the platforms after `emulate`.
    """

    words: tuple[str, ...]
    help: str
    options: tuple[Option, ...] = ()
    operand: Kind[str] = TEXT
    further: tuple[Described, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.words)

    def flags(self) -> Iterator[tuple[str, Option]]:
        """Every spelling of every option, with its dashes, and the option."""
        for option in self.options:
            for name in option.names if option.flag else ():
                yield f"--{name}", option


HELP = Option(flag="help", kind=FLAG, help="Print the usage.", section="", variable="", own=True)
VERSION = Option(flag="version", kind=FLAG, help="Print the version.", section="", variable="", own=True)
_GROUP_HELP = Option(
    flag="help",
    kind=HELP_TOPIC,
    help="Print the common options, or a group.",
    section="",
    variable="",
    own=True,
)
_SERVE = (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS, _GROUP_HELP)
_PLATFORMS = (
    Subcommand(
        ("emulate", "sagemaker"), "Run a SageMaker endpoint on this machine", (*sagemaker.ACCEPTED, HELP), _ARCHIVE
    ),
    Subcommand(
        ("emulate", "vertex"), "Run a Vertex AI endpoint on this machine", (*vertex_options.ACCEPTED, HELP), _ARTIFACTS
    ),
)
SUBCOMMANDS = (
    Subcommand((DEFAULT,), "Serve the models of a repository", _SERVE, REPOSITORY),
    Subcommand(("validate",), "Print every problem of every model", (*validate_options.ACCEPTED, HELP), REPOSITORY),
    Subcommand(("doctor",), "Check whether this machine can serve", (JSON, *_SERVE), REPOSITORY),
    Subcommand(
        ("emulate",),
        "Run an endpoint of a platform on this machine",
        (HELP,),
        further=tuple(Described(each.words[-1], each.help) for each in _PLATFORMS),
    ),
    *_PLATFORMS,
    Subcommand(("trace",), "Show the requests of a trace file as trees", (*trace_command.ACCEPTED, HELP), FILE),
    Subcommand(
        ("completion",),
        "Print the completion script of a shell",
        (HELP,),
        further=tuple(Described(shell, f"For {shell}") for shell in SHELLS),
    ),
    Subcommand(("version",), "Print the version"),
)


def first_words() -> list[Described]:
    """The words that may follow `trident`."""
    return [Described(each.name, each.help) for each in SUBCOMMANDS if len(each.words) == 1]


def outline(option: Option) -> str:
    """The first sentence of the help text, on one line."""
    text = option.help or _NO_EFFECT
    return text.partition(". ")[0].partition("; ")[0].removesuffix(".")
