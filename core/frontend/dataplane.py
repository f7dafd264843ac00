"""The steps of an inference request that all protocols share. A front end has its own codec before and after it:

    find_model        the version that serves the request
    one_response      refuses a model that may answer any number of times
    (its decoder)     the InferenceRequest, whose parameters `read_parameters` sets, and the ResponsePlan
    front_end.bridge  runs it
    (its encoder)     the answer, with `classified` outputs

Source: docs/spec/http.md section 4 "Processing order", docs/spec/grpc.md section 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import InvalidRequest, ModelNotFound, ServerError, Unsupported
from trident.core.frontend.request import RESERVED_PREFIX, set_parameter
from trident.core.inference.request import InferenceRequest, Parameter, check_correlation_id, version_number

_NOT_LISTED: Final = (False, 0)
_log = logging.getLogger("trident.server")


Lookup = Callable[[str, int], ServedModel]
"""`Engine.model`, or one that does not wait."""


def find_model(lookup: Lookup, model: str, version: str) -> tuple[ServedModel, int]:
    """Return the model that serves, and the version that the client asked for, -1 for the latest.

    Raises InvalidRequest for a `version` that is not a number, and as `lookup`.
    """
    number = version_number(version)
    return lookup(model, number), number


def is_served(engine: Engine, name: str) -> bool:
    """Return True if a model of that name is known to serve or to be about to. Never waits for the engine's process:
    False if it would have to be asked. Names that clients make up must not become labels of metrics.
    """
    try:
        return engine.model_nowait(name) is not None
    except ModelNotFound:
        return False
    except ServerError:
        return True
    except Exception:  # the engine's: what is counted here is answered all the same
        _log.exception("looking for model '%s' failed unexpectedly", name)
        return False


_NOT_OVER_HTTP: Final = "HTTP end point doesn't support models with decoupled transaction policy"


def one_response(model: ServedModel, refusal: str = _NOT_OVER_HTTP) -> ServedModel:
    """Return the model, if it gives one response to a request. Raises Unsupported with the text `refusal`."""
    if model.spec.decoupled:
        name = model.spec.name
        cure = f"POST /v2/models/{name}/generate_stream, or ModelStreamInfer over gRPC, answers any number of times"
        raise Unsupported(refusal, hint=cure, model=name)
    return model


# --- parameters of a request


class ParameterForm(NamedTuple):
    """How a protocol writes parameters. The functions take the name and the value, and raise InvalidRequest."""

    flag: str
    """The protocol's own parameter, a boolean."""
    reserved: str
    """The error for an unknown name with the reserved prefix."""
    boolean: Callable[[str, Any], bool]
    priority: Callable[[str, Any], int]
    timeout: Callable[[str, Any], int]
    correlation_id: Callable[[str, Any], int | str]
    custom: Callable[[str, Any], Parameter]


def read_parameters(parameters: Mapping[str, Any], request: InferenceRequest, form: ParameterForm) -> bool:
    """Set the parameters in `request`; returns the protocol's flag. Raises InvalidRequest and Unsupported."""
    flag = False
    for key, value in parameters.items():
        if key == form.flag:
            flag = form.boolean(key, value)
        elif key == "priority":
            request.priority = form.priority(key, value)
        elif key == "timeout":
            request.timeout_us = form.timeout(key, value)
        elif key == "sequence_id":
            request.correlation_id = form.correlation_id(key, value)
            check_correlation_id(request.correlation_id, request.log_prefix)
        elif key == "sequence_start":
            request.sequence_start = form.boolean(key, value)
        elif key == "sequence_end":
            request.sequence_end = form.boolean(key, value)
        elif key.startswith(RESERVED_PREFIX):
            raise InvalidRequest(form.reserved)
        else:
            set_parameter(request, key, form.custom(key, value))
    return flag


# --- the response


class ResponsePlan:
    """The form in which the caller of an infer request wants its response. It never changes.

    `binary` is for outputs that are not listed; `outputs` maps a listed one to (binary, number of classes), where 0
    means no classification. `outputs` is None if the request listed none. `placed` are those that the engine writes
    into shared memory. In a stream, errors repeat `model_version`, the text that the request gave, and `empty_final`
    asks for a message at the end of the responses, where that is told apart from the last one.
    """

    # No dataclass, whose constructor mypyc does not compile.
    __slots__ = ("binary", "empty_final", "model_version", "outputs", "placed")

    def __init__(
        self,
        binary: bool = False,
        outputs: dict[str, tuple[bool, int]] | None = None,
        placed: frozenset[str] = frozenset(),
        model_version: str = "",
        empty_final: bool = False,
    ) -> None:
        self.binary = binary
        self.outputs = outputs
        self.placed = placed
        self.model_version = model_version
        self.empty_final = empty_final

    def form_of(self, name: str) -> tuple[bool, int]:
        """Return whether an output is binary, and the number of classes wanted, 0 for no classification."""
        return (self.binary, 0) if self.outputs is None else self.outputs.get(name, _NOT_LISTED)
