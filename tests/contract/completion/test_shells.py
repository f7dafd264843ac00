"""bash, zsh and fish complete the command lines of `trident` by the scripts that it prints: real shells."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.contract.servers.session import TRIDENT
from tests.needed import program
from tests.project import ROOT
from tests.waiting import until
from trident.tools.completion import COMMANDS, CommandLine

# What a shell offers for the end of a line.
Matches = Callable[[str], set[str]]
_LIMIT_S = 60
_CONTROL_U = b"\x15"  # empties zsh's line
# Splits the line as bash's own line editor does, by COMP_WORDBREAKS.
_BASH = """\
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=()
while IFS= read -r -d '' word; do COMP_WORDS+=("$word"); done < <(printf '%s\\0' "${@:3}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_trident
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Every match passes through `compadd`. A widget completes and notes its end, so that no time is waited for.
_ZSH = """\
PROMPT=READY
fpath=("$ZDOTDIR" $fpath)
autoload -Uz compinit && compinit -u -D
compadd() {
    # A function of zsh that only asks for the matches keeps them itself.
    if [[ " ${@[1,(i)(-|--)]} " == *" -"[OAD]" "* ]]; then builtin compadd "$@"; return; fi
    local -a matches
    builtin compadd -A matches "$@"
    (( $#matches )) && print -rl -- "${(@)matches}" >> "$MATCHES"
    builtin compadd "$@"
}
# It is called once, and asks for the next time itself.
note-end() { : > "$ENDED"; comppostfuncs=(note-end) }
comppostfuncs=(note-end)
LISTMAX=10000
zstyle ':completion:*' menu no
bindkey '^I' complete-word
: > "$STARTED"
"""


@cache
def _script(shell: str) -> str:
    command = [sys.executable, "-m", "trident.app", "completion", shell]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def bash_matches(line: str, folder: Path, words: Sequence[str] = ()) -> set[str]:
    """Return bash's completions of `line` in the directory `folder`; `words` is the line as bash splits it."""
    path = folder.parent / "trident.bash"
    path.write_text(_script("bash"))
    bash = [program("bash", "apt install bash"), "--norc", "-c", _BASH, "bash"]
    command = [*bash, str(path), line, *(words or _words_of(line))]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    assert run.stderr == "" or "compopt: not currently executing completion function" in run.stderr
    return set(run.stdout.split())


def fish_matches(line: str, folder: Path) -> set[str]:
    """The same for fish, without descriptions and without the part of the word before a value."""
    path = folder.parent / "trident.fish"
    path.write_text(_script("fish"))
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    run = subprocess.run(
        [program("fish", "apt install fish"), "--no-config", "-c", f"source {path}; complete -C $argv[1]", line],
        cwd=folder,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIMIT_S,
    )
    return {each.partition("\t")[0] for each in run.stdout.splitlines()}


@contextmanager
def _zsh(folder: Path) -> Iterator[Matches]:
    """The same for one zsh at a terminal of its own, which takes long to start."""
    around = folder.parent
    files = {name: around / name.lower() for name in ("MATCHES", "ENDED", "STARTED")}
    (around / "_trident").write_text(_script("zsh"))
    (around / ".zshrc").write_text(_ZSH)
    places = {"ZDOTDIR": str(around), "HOME": str(around)}
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        [program("zsh", "apt install zsh"), "-i"],
        cwd=folder,
        env=os.environ | {name: str(path) for name, path in files.items()} | {**places, "TERM": "dumb"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    reader = threading.Thread(target=_read_all, args=(leader,))
    reader.start()

    def matches(line: str) -> set[str]:
        for name in ("MATCHES", "ENDED"):
            files[name].unlink(missing_ok=True)
        os.write(leader, _CONTROL_U + line.encode() + b"\t")
        until(files["ENDED"].exists, "zsh did not complete")
        return set(files["MATCHES"].read_text().splitlines()) if files["MATCHES"].exists() else set()

    try:
        until(files["STARTED"].exists, "zsh did not start")
        yield matches
    finally:
        shell.kill()
        shell.wait()
        reader.join()
        os.close(leader)


def _read_all(leader: int) -> None:
    """Read a terminal's output, so that it never fills up, until it is closed."""
    with suppress(OSError):
        while os.read(leader, 1 << 16):
            pass


def _words_of(line: str) -> list[str]:
    """The words of `line` as bash's line editor splits them; quotes do not occur."""
    words: list[str] = []
    for word in line.split(" "):
        before, equals, after = word.partition("=")
        words += [before, equals, after] if equals and after else [before, equals] if equals else [before]
    return words


SHELLS: dict[str, Callable[[Path], AbstractContextManager[Matches]]] = {
    "bash": lambda folder: nullcontext(lambda line: bash_matches(line, folder)),
    "zsh": _zsh,
    "fish": lambda folder: nullcontext(lambda line: fish_matches(line, folder)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a repository and a file."""
    made = tmp_path_factory.mktemp("shells") / "here"
    (made / "models").mkdir(parents=True)
    (made / "notes.txt").touch()
    return made


@pytest.fixture(scope="module", params=SHELLS)
def matches(request: pytest.FixtureRequest, folder: Path) -> Iterator[Matches]:
    """Completions of the shell. Only some shells add the option before a value, an = or a final slash."""
    with SHELLS[request.param](folder) as offered:

        def plain(line: str) -> set[str]:
            found = {each.partition("=")[2] or each.removesuffix("=") for each in offered(line)}
            return {each if each.endswith("://") else each.removesuffix("/") for each in found}

        yield plain


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trident ", {each.name for each in COMMANDS} - {"", "emulate azureml", "emulate sagemaker", "emulate vertex"}),
        ("trident val", {"validate"}),
        ("trident emulate ", {"azureml", "sagemaker", "vertex"}),
        ("trident completion ", {"bash", "zsh", "fish"}),
        ("trident serve --http-po", {"--http-port"}),
        ("trident --http-po", {"--http-port"}),
        ("trident --http-port=1 --metrics-po", {"--metrics-port"}),
        ("trident doctor --js", {"--json"}),
        ("trident emulate vertex --end", {"--endpoint-type"}),
        ("trident emulate --port 1 sagemaker --mul", {"--multi-model"}),
        ("trident serve --log-format=", {"default", "ISO8601", "json"}),
        ("trident serve --log-format j", {"json"}),
        ("trident validate --format=t", {"text"}),
        ("trident serve --allow-http=", {"true", "false"}),
        ("trident serve --http-port=", set()),
        ("trident serve ", {"models", "notes.txt", "s3://", "gs://", "as://"}),
        ("trident import ", {"models", "notes.txt", "s3://", "gs://", "as://"}),
        ("trident serve --model-control-mode=poll mod", {"models"}),
        ("trident validate models mod", {"models"}),
        ("trident validate models --for", {"--format"}),
        ("trident serve --model-repository=", {"models", "s3://", "gs://", "as://"}),
        ("trident serve --log-file=", {"models", "notes.txt"}),
        ("trident emulate sagemaker ", {"models", "notes.txt", "s3://", "gs://", "as://"}),
        ("trident emulate vertex ", {"models", "gs://"}),
    ],
)
def test_the_end_of_a_line_is_completed(matches: Matches, line: str, expected: set[str]) -> None:
    assert matches(line) == expected


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.options], ids=lambda each: each.name)
def test_every_option_of_a_command_is_offered(matches: Matches, command: CommandLine) -> None:
    expected = {f"--{name}" for option in command.options for name in option.names}
    assert matches(" ".join(["trident", *command.name.split(), "--"])) == expected


def test_bash_completes_values_after_an_unsplit_equals_sign(folder: Path) -> None:
    assert bash_matches("trident serve --log-format=j", folder) == {"json"}
    unsplit = bash_matches("trident serve --log-format=j", folder, words=["trident", "serve", "--log-format=j"])
    assert unsplit == {"--log-format=json"}


def test_closed_output_pipe_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone:
        done = subprocess.run([TRIDENT, "completion", "bash"], stdout=gone, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
