"""The errors of the server: Triton's eight codes, and one exception class per cause.

    ServerError
    ├── InvalidRequest         INVALID_ARG     the request cannot be right
    │   └── SequenceNotFound   INVALID_ARG     its sequence is not open, and it does not start one
    ├── ConfigInvalid          INVALID_ARG     the model configuration cannot be right
    ├── ModelNotFound          NOT_FOUND       no such model or version
    ├── ModelNotReady          UNAVAILABLE     known, but not ready to serve
    │   ├── ModelLoading       UNAVAILABLE     it is still being loaded
    │   └── ModelCold          UNAVAILABLE     it is registered, and loaded when something asks for it
    ├── ModelLoadFailed        INTERNAL        loading ended with a failure
    │   ├── DeviceLost         INTERNAL        its GPU can run nothing more until the process is replaced
    │   └── NotInstalled       INTERNAL        its packages are not installed, and must not be
    ├── AlreadyLoaded          ALREADY_EXISTS  the model is loaded or being loaded
    ├── QueueFull              UNAVAILABLE     the model's queue is full
    ├── DeadlineExceeded       UNAVAILABLE     the request waited longer than its queue policy allows
    ├── ServerStopping         UNAVAILABLE     the server is stopping
    ├── RequestCancelled       CANCELLED       the caller went away
    ├── Unsupported            UNSUPPORTED     the protocol has it, but not this model or server
    ├── OutOfMemory            UNAVAILABLE     the device has no memory left for this
    ├── RegionNotFound         NOT_FOUND       no region of shared memory is registered under that name
    ├── RegionExists           ALREADY_EXISTS  a region of that name is registered
    ├── RegionFailed           INTERNAL        shared memory cannot be opened or written, or is too small for a result
    ├── BackendFailed          INTERNAL        the backend raised while executing, or the model answered with an error,
    │                                          which may have any other code
    ├── UnexpectedError        INTERNAL        a part of the server raised something that is not in this tree
    └── RepositoryUnavailable  UNAVAILABLE     the model repository cannot be read
        └── AccessRefused      UNAVAILABLE     its storage refused a call

Status numbers of a protocol do not appear here: each front end maps codes (and, where it must, classes) to its own.
Source: Triton's `tritonserver.h` (codes), docs/spec/http.md section 1, docs/spec/repository.md section 1.1 (labels).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

# The text for clients when the server itself fails their request.
UNEXPECTED: Final = "unexpected error in the server, its log says more"


class ErrorCode(Enum):
    """Triton's error codes; the value is the label that Triton prints in load reasons and logs."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


class ErrorHints(Enum):
    """How a front end gives its clients the hint of an error: in the text, in a field of its own, or not at all."""

    TEXT = "text"
    FIELD = "field"
    OFF = "off"


class ServerError(Exception):
    """An error with a text for the client, a code, and perhaps a hint and the model that it concerns.

    The client reads `message`, which is Triton's text if a client could match on it. `hint` says what to do about the
    error; it is logged, and sent as the front end's ErrorHints say. `field` is the field of the model's
    configuration that the error is about (`parameters[KEY]`), or "".
    """

    code: ErrorCode = ErrorCode.UNKNOWN
    # True if a front end refused the request before it parsed the body: Triton answers such an error in another form.
    before_parsing = False
    # True if the client is at fault although the code, which is Triton's, says that the server is.
    blames_client = False
    # Seconds after which the same request may succeed; None if waiting alone does not help.
    retry_after_s: int | None = None

    def __init__(self, message: str, *, hint: str | None = None, model: str | None = None, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.model = model
        self.field = field

    @property
    def reason(self) -> str:
        """`CODE: MESSAGE`, as the repository index and the log show a failure."""
        return f"{self.code.value}: {self.message}"

    @property
    def log_text(self) -> str:
        """The message for a log, where an error whose message is empty for clients has one."""
        return self.message

    def client_text(self, hints: ErrorHints) -> str:
        """The text of the error for a client, which ends with the hint if that belongs there."""
        if self.hint and hints is ErrorHints.TEXT:
            return f"{self.message.rstrip()} (hint: {self.hint})"
        return self.message


class InvalidRequest(ServerError):
    code = ErrorCode.INVALID_ARG


class SequenceNotFound(InvalidRequest):
    """The sequence was never started, or has ended, perhaps because it was idle."""


class ConfigInvalid(ServerError):
    code = ErrorCode.INVALID_ARG


class ModelNotFound(ServerError):
    code = ErrorCode.NOT_FOUND


class ModelNotReady(ServerError):
    code = ErrorCode.UNAVAILABLE


class ModelLoading(ModelNotReady):
    retry_after_s = 1


class ModelCold(ModelNotReady):
    """`await_load(then)` has it loaded; `then` is called when the load has succeeded or failed, on any thread."""

    retry_after_s = 1
    await_load: Callable[[Callable[[], object]], None]


class ModelLoadFailed(ServerError):
    code = ErrorCode.INTERNAL


class DeviceLost(ModelLoadFailed):
    """An earlier failure left the process's CUDA context on `device` (as in `Placement.device`) unusable."""

    def __init__(self, message: str, *, hint: str | None = None, model: str | None = None, device: str = "") -> None:
        # An error that arrives from another process is made with the same arguments for every class, without `device`.
        super().__init__(message, hint=hint, model=model)
        self.device = device


class NotInstalled(ModelLoadFailed):
    """The model needs packages that may not be installed here."""


class AlreadyLoaded(ServerError):
    code = ErrorCode.ALREADY_EXISTS


class QueueFull(ServerError):
    code = ErrorCode.UNAVAILABLE
    retry_after_s = 1


class DeadlineExceeded(ServerError):
    code = ErrorCode.UNAVAILABLE


class ServerStopping(ServerError):
    code = ErrorCode.UNAVAILABLE


class RequestCancelled(ServerError):
    code = ErrorCode.CANCELLED

    @property
    def log_text(self) -> str:
        return self.message or "the client went away"


class Unsupported(ServerError):
    code = ErrorCode.UNSUPPORTED


class OutOfMemory(ServerError):
    code = ErrorCode.UNAVAILABLE


class RegionNotFound(ServerError):
    code = ErrorCode.NOT_FOUND


class RegionExists(ServerError):
    code = ErrorCode.ALREADY_EXISTS


class RegionFailed(ServerError):
    code = ErrorCode.INTERNAL
    blames_client = True


class BackendFailed(ServerError):
    """The message is complete unless there is a cause; that of a Python model includes the model's traceback.

    A model may give its error any code. The class, never the code, says that the model failed.
    """

    code = ErrorCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        model: str | None = None,
        field: str = "",
        code: ErrorCode = ErrorCode.INTERNAL,
    ) -> None:
        super().__init__(message, hint=hint, model=model, field=field)
        self.code = code


class UnexpectedError(ServerError):
    """Hides the cause from the client; it was logged with its traceback where it was caught."""

    code = ErrorCode.INTERNAL


def has_telling_traceback(error: BaseException) -> bool:
    """Return True if the log should show the traceback of `error`.

    False for a model's failure, whose traceback only shows the path of the response; for a failed load, whose traceback
    only shows the request for it; and for an unexpected error, which was logged where it was caught.
    """
    if isinstance(error, UnexpectedError):
        return False
    return not isinstance(error, (BackendFailed, ModelLoadFailed)) or error.__cause__ is not None


class RepositoryUnavailable(ServerError):
    code = ErrorCode.UNAVAILABLE


class AccessRefused(RepositoryUnavailable):
    """A storage refused a call: the identity lacks a permission, or its credentials are not valid."""


def installation(extra: str) -> str:
    """The command that installs an extra. It uses no index: others could register the project's name there."""
    return f"pip install '.[{extra}]' in the checkout, or with a wheel's file name in place of the dot"


def readable(text: str) -> str:
    """`text` with a question mark for each surrogate; texts of clients and models, and file names, may have some."""
    return text.encode("utf-8", "replace").decode()
