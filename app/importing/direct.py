"""`trident serve FILE`: a repository for as long as the server runs, made around files that are not in one.

The model is made by a process of its own, as `trident import --link --no-run` makes it: the main process of a server
imports nothing that serves, and has no thread, before it forks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trident.adapters.common.options import BadOption

_CONFIG_FILE = "config.pbtxt"
# What folders have that are one model, and no repository.
_MARKS = frozenset(
    {"MLmodel", "genai_config.json", "MAR-INF", "saved_model.pb", "model.yaml", "model-settings.json", _CONFIG_FILE}
)
_MARKED = frozenset({".onnx", ".pt", ".pt2", ".mar", ".xml", ".cbm", ".joblib", ".pkl", ".skops", ".ubj", ".bst"})
_HUB = frozenset({"config.json", "tokenizer.json"})


def is_served_directly(path: Path) -> bool:
    """Whether `path` is a model, or looks like one, and not a repository. It reads names only."""
    if path.is_file():
        return True
    if not path.is_dir():
        return False
    entries = [each for each in path.iterdir() if not each.name.startswith(".")]
    folders = [each for each in entries if each.is_dir()]
    if any(_is_model_folder(each) for each in folders if not each.name.isdecimal()):
        return False
    names = {each.name for each in entries}
    if names & _MARKS or names >= _HUB or any(each.suffix in _MARKED for each in entries if each.is_file()):
        return True
    return any(each.name.isdecimal() and any(each.iterdir()) for each in folders)


def _is_model_folder(path: Path) -> bool:
    names = {each.name for each in path.iterdir()}
    return (
        _CONFIG_FILE in names
        or names >= _HUB
        or any(each.name.isdecimal() and each.is_dir() for each in path.iterdir())
    )


@contextmanager
def repositories_around() -> Iterator[Callable[[str], str]]:
    """Gives the repository for a word after `serve`: the word, or a folder that lasts as long as the context.

    It raises BadOption for a file that is no model.
    """
    with ExitStack() as made:

        def around(word: str) -> str:
            return _made(word, made) if is_served_directly(Path(word)) else word

        yield around


def _made(word: str, made: ExitStack) -> str:
    folder = Path(tempfile.mkdtemp(prefix="trident-serve-"))
    made.callback(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "trident.app", "import", word, f"--repository={folder}", "--link", "--no-run"]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise BadOption((run.stderr or run.stdout).strip())
    for line in run.stdout.splitlines():
        print(f"{word} is served as the model {line}. `trident import {word}` keeps it.", flush=True)
    return str(folder)
