"""Errors that cross from the engine to a front end."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

import trident.core
from tests.unit.product_modules import product_modules
from trident.core import errors
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.errors import ErrorCode, OutOfMemory, QueueFull, ServerError
from trident.core.remote.calls import EngineGone, error_of, error_to_plain


def over_the_wire(error: BaseException) -> ServerError:
    return error_of(orjson.loads(orjson.dumps(error_to_plain(error))))


def engine_errors() -> Iterator[type[ServerError]]:
    """Every error class that the rooms of the engine define."""
    for module in product_modules(trident.core):
        if module.__name__.split(".")[2] in ("frontend", "http", "grpc", "remote"):
            continue
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, ServerError) and kind.__module__ == module.__name__:
                yield kind


@pytest.mark.parametrize("kind", sorted(set(engine_errors()), key=str))
def test_every_error_of_the_engine_keeps_its_class(kind: type[ServerError]) -> None:
    error: ServerError
    if kind is InvalidModelConfig:
        problems = [Problem("input[0].dims", "must be set", "give dims"), Problem("name", "differs")]
        error = InvalidModelConfig(problems, model="m")
    else:
        error = kind("what happened", hint="what to do", model="m")
    found = over_the_wire(error)
    assert type(found) is kind
    assert (found.message, found.hint, found.model) == (error.message, error.hint, "m")
    assert str(found) == str(error)
    assert found.code is kind.code
    assert found.reason == error.reason
    assert vars(found).get("problems") == vars(error).get("problems")


def test_an_error_may_have_neither_hint_nor_model() -> None:
    found = over_the_wire(QueueFull("full"))
    assert (type(found), found.hint, found.model) == (QueueFull, None, None)


def test_each_reading_makes_a_new_error() -> None:
    plain = error_to_plain(OutOfMemory("no memory"))
    assert error_of(plain) is not error_of(plain)


@pytest.mark.parametrize("code", ErrorCode)
def test_an_unknown_class_keeps_its_code(code: ErrorCode) -> None:
    unknown = type("FromTomorrow", (ServerError,), {"code": code})
    found = over_the_wire(unknown("what happened", hint="h"))
    assert type(found) is ServerError
    assert (found.code, found.message, found.hint) == (code, "what happened", "h")
    assert ServerError.code is ErrorCode.UNKNOWN


def test_the_code_wins_over_a_class_that_has_another_code() -> None:
    plain = error_to_plain(QueueFull("full"))
    plain[1] = ErrorCode.INTERNAL.value
    found = error_of(plain)
    assert (type(found), found.code) == (ServerError, ErrorCode.INTERNAL)


@pytest.mark.parametrize("error", [KeyError("secret"), RuntimeError("secret"), MemoryError(), KeyboardInterrupt()])
def test_an_unexpected_error_is_logged_and_hidden_from_the_client(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "trident.engine"):
        found = over_the_wire(error)
    assert found.code is ErrorCode.INTERNAL
    assert found.message == "unexpected error in the server, its log says more"
    assert (found.hint, found.model) == (None, None)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_server_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    error_to_plain(QueueFull("full"))
    assert caplog.records == []


def test_text_that_is_not_unicode_is_sent() -> None:
    error = InvalidModelConfig([Problem("\udcff", "m \ud800 ü", "h \udc80")], model="\udcff")
    found = over_the_wire(error)
    assert isinstance(found, InvalidModelConfig)
    assert (found.message, found.hint, found.model) == ("m ? ü", "h ?", "?")


def test_engine_gone_is_unavailable() -> None:
    error = EngineGone("gone")
    assert error.code is ErrorCode.UNAVAILABLE
    assert type(over_the_wire(error)) is EngineGone


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        "QueueFull",
        ["QueueFull", "Unavailable", "full", None, None],
        ["QueueFull", "Unavailable", 1, None, None, []],
        ["QueueFull", "no such code", "full", None, None, []],
        ["QueueFull", None, "full", None, None, []],
        [["QueueFull"], "Unavailable", "full", None, None, []],
        ["InvalidModelConfig", "Invalid argument", "m", None, None, [["path"]]],
    ],
)
def test_reading_refuses_malformed_errors(plain: Any) -> None:
    with pytest.raises(ValueError, match=" is no "):
        error_of(plain)


@pytest.mark.parametrize("name", ["ErrorCode", "Exception", "Enum", "annotations", "__builtins__", "os.system"])
def test_reading_finds_only_classes_of_the_table(name: str) -> None:
    assert type(error_of([name, "Unknown", "m", None, None, []])) is ServerError


def test_an_invalid_config_without_problems_is_still_an_error() -> None:
    found = error_of(["InvalidModelConfig", "Invalid argument", "m", "h", None, []])
    assert (found.code, found.message, found.hint) == (ErrorCode.INVALID_ARG, "m", "h")


def test_every_class_of_core_errors_is_in_the_table() -> None:
    names = {kind.__name__ for kind in engine_errors()}
    assert {"QueueFull", "InvalidModelConfig", "RepositoryUnavailable"} <= names
    assert all(getattr(errors, name, None) or name == "InvalidModelConfig" for name in names)
