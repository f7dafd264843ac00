"""Real shells that complete a command line of `trident` by the script that `trident completion` prints."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.contract.deploy.external_tool import external_tool
from tests.project import ROOT
from tests.waiting import until

_LIMIT_S = 60
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
note-end() { : > "$ENDED" }
comppostfuncs=(note-end)
zstyle ':completion:*' menu no
bindkey '^I' complete-word
: > "$STARTED"
"""


@cache
def _script(shell: str) -> str:
    command = [sys.executable, "-m", "trident.app", "completion", shell]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def bash_matches(line: str, folder: Path, words: Sequence[str] = ()) -> set[str]:
    """What bash offers for the end of `line` in the directory `folder`; `words` is the line as bash splits it."""
    path = folder.parent / "trident.bash"
    path.write_text(_script("bash"))
    command = [
        external_tool("bash", "bash"),
        "--norc",
        "-c",
        _BASH,
        "bash",
        str(path),
        line,
        *(words or _words_of(line)),
    ]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    assert run.stderr == "" or "compopt: not currently executing completion function" in run.stderr
    return set(run.stdout.split())


def fish_matches(line: str, folder: Path) -> set[str]:
    """The same for fish; the text of a description is left out, and so is what the word already has before a value."""
    path = folder.parent / "trident.fish"
    path.write_text(_script("fish"))
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    run = subprocess.run(
        [external_tool("fish", "fish"), "--no-config", "-c", f"source {path}; complete -C $argv[1]", line],
        cwd=folder,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=_LIMIT_S,
    )
    return {each.partition("\t")[0] for each in run.stdout.splitlines()}


def zsh_matches(line: str, folder: Path) -> set[str]:
    """The same for zsh, at a terminal of its own."""
    around = folder.parent
    names = {name: str(around / name.lower()) for name in ("MATCHES", "ENDED", "STARTED")}
    (around / "_trident").write_text(_script("zsh"))
    for name in ("MATCHES", "ENDED", "STARTED"):
        Path(names[name]).unlink(missing_ok=True)
    (around / ".zshrc").write_text(_ZSH)
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        [external_tool("zsh", "zsh"), "-i"],
        cwd=folder,
        env={**os.environ, **names, "ZDOTDIR": str(around), "HOME": str(around), "TERM": "dumb"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    try:
        until(Path(names["STARTED"]).exists, "zsh did not complete")
        os.write(leader, line.encode() + b"\t")
        until(Path(names["ENDED"]).exists, "zsh did not complete")
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)
    with suppress(FileNotFoundError):
        return set(Path(names["MATCHES"]).read_text().splitlines())
    return set()


def _words_of(line: str) -> list[str]:
    """The words of `line` as bash's line editor splits them; quotes do not occur."""
    words: list[str] = []
    for word in line.split(" "):
        before, equals, after = word.partition("=")
        words += [before, equals, after] if equals and after else [before, equals] if equals else [before]
    return words


SHELLS: dict[str, Callable[[str, Path], set[str]]] = {"bash": bash_matches, "zsh": zsh_matches, "fish": fish_matches}
