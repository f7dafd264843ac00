"""Errors on their way from the engine to a front end: the name of the class, the code and the texts.

    EngineGone    UNAVAILABLE    the engine ended while it had the request, or does not run

The front end raises EngineGone itself; all other errors are sent by the engine. An unknown class becomes a plain
ServerError of the same code, so that the answer has the same status.
Source: the tree in core/errors.py.
"""

from __future__ import annotations

import logging
from typing import Any

from core import errors
from core.config.problem import InvalidModelConfig, Problem
from core.errors import ErrorCode, ServerError
from core.remote.calls.serialization import reader_of

_log = logging.getLogger("trident.engine")

_UNFORESEEN = "unexpected error in the server, its log says more"


class EngineGone(ServerError):
    code = ErrorCode.UNAVAILABLE
    retry_after_s = 1


class _Unforeseen(ServerError):
    code = ErrorCode.INTERNAL


# Class, code, message, hint, model, and the problems of a model configuration.
_read = reader_of(tuple[str, ErrorCode, str, str | None, str | None, tuple[Problem, ...]])
_CLASSES: dict[str, type[ServerError]] = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), EngineGone)
    if isinstance(kind, type) and issubclass(kind, ServerError)
}


def error_to_plain(error: BaseException) -> list[Any]:
    """The error as `error_of` reads it, ready for orjson.

    Of an error that is no ServerError the client learns only that it happened; the log has it with its traceback.
    """
    if not isinstance(error, ServerError):
        _log.error("unexpected error in the server", exc_info=error)
        error = _Unforeseen(_UNFORESEEN)
    return [
        type(error).__name__,
        error.code.value,
        _unicode(error.message),
        None if error.hint is None else _unicode(error.hint),
        None if error.model is None else _unicode(error.model),
        _problems(error),
    ]


def error_of(plain: Any) -> ServerError:
    """The error, to be raised. Raises ValueError for anything that `error_to_plain` does not make."""
    name, code, message, hint, model, problems = _read(plain)
    if name == InvalidModelConfig.__name__ and problems:
        return InvalidModelConfig(problems, model=model)
    kind = _CLASSES.get(name, ServerError)
    if kind.code is code:
        return kind(message, hint=hint, model=model)
    error = ServerError(message, hint=hint, model=model)
    error.code = code
    return error


def _problems(error: ServerError) -> list[Any]:
    if not isinstance(error, InvalidModelConfig):
        return []
    return [[_unicode(each.path), _unicode(each.message), _unicode(each.hint)] for each in error.problems]


def _unicode(text: str) -> str:
    """`text` as valid Unicode: it may quote a client's bytes or a file name."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
