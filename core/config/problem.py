"""A problem of a model configuration, and the error that carries all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trident.core.errors import ConfigInvalid, ServerError
from trident.core.inference.tensors import Shape


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a configuration: where, what, and how to cure it.

    `path` is a field of the configuration (`input[0].dims`) or a file; `message` is Triton's text if Triton has one.
    """

    path: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, path: str, error: ServerError) -> Problem:
        """The problem that `error` describes: at the field that it names, else at `path`."""
        return cls(error.field or path, error.message, error.hint or "")


class InvalidModelConfig(ConfigInvalid):
    """A configuration with problems: message and hint are those of the first, `problems` holds every one."""

    def __init__(self, problems: Sequence[Problem], *, model: str | None = None) -> None:
        first = problems[0]
        super().__init__(first.message, hint=first.hint or None, model=model)
        self.problems = tuple(problems)


# They are followed link by link below the directory as given, because its canonical path may be meaningless: where
# KServe mounts a model from another container, `/mnt/models` is a link to `/proc/PID/root/models`, and that resolves
# to `/models`, which is a path in the other container.


# Linux's limit; a path through more links is treated as a cycle.
_MOST_LINKS = 40
# Linux's longest path in characters. Following a longer one would take quadratic time.
_LONGEST = 4096


def is_plain(relative: str) -> bool:
    """Whether the text of `relative` stays within a directory; symbolic links are not followed."""
    return not (relative.startswith("/") or ".." in relative.split("/") or "\0" in relative)


def path_inside(directory: Path, relative: str) -> Path | None:
    """`directory/relative` with the symbolic links below `directory` followed; None if it leads outside.

    A path that leads out and in again is inside. The path need not exist.
    """
    if "\0" in relative:
        return None
    names = _followed(directory, [], relative, _MOST_LINKS)
    return None if names is None else directory.joinpath(*names)


def _followed(directory: Path, below: list[str], text: str, links: int) -> list[str] | None:
    """The names below `directory`, none of them a link, that `text` leads to from the folder `below`.

    None if it leads outside or through more than `links` links.
    """
    if len(text) > _LONGEST:
        return None
    if text.startswith("/"):
        return _back_inside(directory, text, links)
    names = text.split("/")
    for index, name in enumerate(names):
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            if not below:
                return _back_inside(directory, "/".join((str(directory), *names[index:])), links)
            below = below[:-1]
            continue
        target = _link(directory.joinpath(*below, name))
        if target:
            return _followed(directory, below, "/".join((target, *names[index + 1 :])), links - 1) if links else None
        below = [*below, name]
    return below


def _back_inside(directory: Path, path: str, links: int) -> list[str] | None:
    """As `_followed` for an absolute `path`: continues where the path last passes `directory`, under any name."""
    names = path.split("/")
    for end in range(len(names), 0, -1):
        try:
            is_there = os.path.samefile("/".join(names[:end]) or "/", directory)
        except OSError:
            continue
        if is_there:
            leaves = names[end : end + 1] == [os.pardir]
            rest = "/".join(names[end:]).lstrip("/")
            return None if leaves or not links else _followed(directory, [], rest, links - 1)
    return None


def _link(path: Path) -> str:
    """The target of the link at `path`; "" if it is not a link or does not exist."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """An input or output as the graph declares it. Variable dimensions are -1.

    `datatype` is a v2 name, or "" for a type that cannot be served.
    """

    name: str
    datatype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class BatchingFault:
    """Why a trial forbids batching (`seen`, a clause), and how to change the model so that it can be batched."""

    seen: str
    cure: str


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The tensors of a graph. `optional_inputs` are initializers that a request may override.

    `can_batch` is what the model itself says about its first dimensions; None if only their sizes say it. It, and the
    sizes, may be wrong: `batching_fault` is what running the graph has shown.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    optional_inputs: tuple[TensorSignature, ...] = ()
    can_batch: bool | None = None
    batching_fault: BatchingFault | None = None
