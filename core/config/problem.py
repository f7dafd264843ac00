"""A problem of a model configuration, and the error that carries all of them."""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from trident.core.errors import ConfigInvalid, ServerError, Unsupported

if TYPE_CHECKING:
    from trident.core.inference.tensors import Shape


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a configuration: its path, its message and a hint.

    `path` is a field of the configuration (`input[0].dims`) or a file; `message` is Triton's text if Triton has one.
    `is_unsupported`: the model is whole, and asks for what its backend lacks.
    """

    path: str
    message: str
    hint: str = ""
    is_unsupported: bool = False

    @classmethod
    def of(cls, path: str, error: ServerError) -> Problem:
        """The problem that `error` describes: at the field that it names, else at `path`."""
        return cls(error.field or path, error.message, error.hint or "", isinstance(error, Unsupported))


class InvalidModelConfig(ConfigInvalid):
    """A configuration with problems: message and hint are those of the first, `problems` holds every one."""

    def __init__(self, problems: Sequence[Problem], *, model: str | None = None) -> None:
        first = problems[0]
        super().__init__(first.message, hint=first.hint or None, model=model)
        self.problems = tuple(problems)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the one of `known` that is nearest to `name`, or with all of them if none is near."""
    names = list(known)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{found[0]}'?" if found else f"known are: {', '.join(names)}"


DECOUPLED = "'decoupled' transaction policy"


def cache_problem(model_name: str, what: str, hint: str = "") -> Problem:
    text = (
        f"Response Cache does not currently support model {model_name} with {what}. Please disable the response cache."
    )
    return Problem("response_cache", text, hint)


def is_plain(relative: str) -> bool:
    """Return true if the text of `relative` stays within a directory; symbolic links are not followed."""
    return not (relative.startswith("/") or ".." in relative.split("/") or "\0" in relative)


def path_inside(directory: Path, relative: str) -> Path | None:
    """`directory/relative`; None if it leads outside, symbolic links followed. The path need not exist."""
    path = directory / relative
    try:
        return path if _real_path(path).is_relative_to(_real_path(directory)) else None
    except OSError:
        return path if is_plain(relative) else None
    except ValueError:  # a NUL
        return None


def open_file(path: Path) -> BufferedReader:
    """Open a file of a model to read it. Raises OSError for anything but a regular file, such as a pipe or a link to a
    file of the kernel: to read those could take for ever.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    try:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or (not found.st_size and _has_content(file)):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except OSError:
        file.close()
        raise
    return file


def _has_content(file: BufferedReader) -> bool:
    try:
        return os.read(file.fileno(), 1) != b""
    except BlockingIOError:
        return True


def read_file(path: Path, most: int = 4 << 30) -> bytes:
    """Return the content of a file of a model. Raises OSError as `open_file`, and for more than `most` bytes, which a
    file without data may have."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, and may have {most}", str(path))
        return file.read(size)


def _real_path(path: Path) -> Path:
    """Where the kernel finds `path`. Raises OSError.

    Following the links by their text would not do: where KServe mounts a model from another container, `/mnt/models` is
    a link to `/proc/PID/root/models`, whose text leads to `/models` of this container.
    """
    descriptor = os.open(path, os.O_PATH)
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


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

    `batches_optional`: requests are batched though some have optional inputs and others do not.
    `can_batch` is what the model itself says about its first dimensions; None if only their sizes say it. It, and the
    sizes, may be wrong: `batching_fault` is what running the graph has shown.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    optional_inputs: tuple[TensorSignature, ...] = ()
    can_batch: bool | None = None
    batching_fault: BatchingFault | None = None
    batches_optional: bool = False
