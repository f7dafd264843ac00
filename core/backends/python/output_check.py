"""Whether the outputs of a model are those of its configuration. What is not so is said once, or is an error.

Source: docs/spec/python-backend.md section 4.2.
"""

from __future__ import annotations

import logging

from trident.core.config.spec import ModelSpec
from trident.core.inference.tensors import Shape

_log = logging.getLogger("trident.backends.python")

_OPTION = "--strict-python-outputs"


class OutputCheck:
    """Of all processes of one model version. Any thread.

    `strict`: what is wrong is an error of the request. Otherwise it is logged, once for each tensor and kind of fault,
    and the client gets the output as it is, unless the configuration does not have it.
    """

    def __init__(self, spec: ModelSpec, strict: bool = False) -> None:
        self._spec = spec
        self._strict = strict
        self._said: set[tuple[str, str]] = set()

    def fault(self, name: str, datatype: str, shape: Shape) -> str:
        """What the request fails with because of an output as the model made it; "" for nothing."""
        spec = self._spec
        output = spec.outputs.get(name)
        if output is None:
            known = ", ".join(f"'{each}'" for each in spec.outputs) or "none"
            return self._found(
                name, "name", f"is not in the configuration, whose outputs are: {known}", "it is dropped"
            )
        if datatype != output.datatype.name:
            return self._found(
                name, "datatype", f"has the datatype {datatype}, but the configuration says {output.datatype.name}"
            )
        dims = output.dims if output.model_dims is None else output.model_dims
        if spec.max_batch_size > 0:
            dims = (-1, *dims)
        if len(dims) != len(shape) or any(dim not in (-1, size) for dim, size in zip(dims, shape, strict=True)):
            return self._found(name, "shape", f"has the shape {list(shape)}, but the configuration says {list(dims)}")
        return ""

    def rows_fault(self, name: str, rows: int, batch_size: int) -> str:
        """The same for an output with another number of rows than the batch of its request."""
        return self._found(name, "rows", f"has {rows} rows, but its request has a batch of {batch_size}")

    def _found(self, name: str, kind: str, text: str, what: str = "clients get it as it is") -> str:
        text = f"output '{name}' of model '{self._spec.name}' {text}"
        if self._strict:
            return f"{text} ({_OPTION})"
        if (name, kind) not in self._said:
            self._said.add((name, kind))
            _log.warning(
                "%s; %s, and it is not said again: %s makes it an error",
                text,
                what,
                _OPTION,
                extra={"model": self._spec.name},
            )
        return ""
