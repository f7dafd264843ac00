"""The package `tensorrt` on memory of the CPU, with the names and the manners of version 10's Python API.

A plan is the header of a real one and a description in JSON (`plan`). An engine interprets its `operation` over the
addresses that it is given. As in TensorRT, calls that cannot be obeyed log an error and return False or None, a
runtime needs a device, shapes are checked against the profile, and an execution happens on its stream, after what was
begun there.
"""

from __future__ import annotations

import ctypes
import enum
import json
import struct
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.unit.core.cuda.fake_cuda import STREAMS, run_stream

__version__ = "10.9.0.34"

MAGIC = b"ftrt"
_HEADER = struct.Struct("<4sIQQ4B4s")

TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "uint16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
    "FP8": "uint8",
}


def plan(
    inputs: Sequence[dict[str, Any]],
    outputs: Sequence[dict[str, Any]],
    operation: str,
    version: Sequence[int] = (10, 9, 0, 34),
) -> bytes:
    """A plan. Tensors have `name`, `type`, `shape`, perhaps `is_shape` and `format`; inputs have `profiles`, each with
    the least, the best and the largest shape, or such values of a shape tensor.
    """
    content = json.dumps({"inputs": list(inputs), "outputs": list(outputs), "operation": operation}).encode()
    return _HEADER.pack(MAGIC, 0, 32, len(content), *version, b"rtrt") + content


# Blocks that were not freed.
ENGINES: weakref.WeakSet[Any] = weakref.WeakSet()


class DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64 = range(9)


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class TensorFormat(enum.Enum):
    LINEAR, CHW2, HWC8 = range(3)


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self) -> None:
        pass

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class IOutputAllocator:
    def __init__(self) -> None:
        pass


def init_libnvinfer_plugins(logger: ILogger, namespace: str) -> bool:
    logger.log(ILogger.Severity.INFO, "plugins are registered")
    return True


class Dims(tuple[int, ...]):
    """Only what TensorRT's `Dims` has."""


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self.logger = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        def fail(text: str) -> None:
            self.logger.log(ILogger.Severity.ERROR, text)

        if serialized_engine[:4] != MAGIC:
            return fail("Error Code 1: Serialization (assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.)")
        header = _HEADER.unpack(serialized_engine[:32])
        if header[4:6] != (10, 9) and not self.engine_host_code_allowed:
            return fail(
                "The engine plan file is not compatible with this version of TensorRT, expecting library version 10.9.0"
            )
        if len(serialized_engine) < 32 + header[3]:
            return fail("Error Code 1: Serialization (assertion size <= mSize failed.)")
        return ICudaEngine(json.loads(serialized_engine[32:]), self.logger)


class ICudaEngine:
    def __init__(self, description: Any, logger: ILogger) -> None:
        ENGINES.add(self)
        self.logger = logger
        self.operation = description["operation"]
        self.tensors = {each["name"]: each for each in [*description["inputs"], *description["outputs"]]}
        self._inputs = [each["name"] for each in description["inputs"]]
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = max(1, *(len(each.get("profiles", ())) for each in self.tensors.values()))

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.tensors[name]["type"]]

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self.tensors[name]["shape"])

    def get_tensor_format(self, name: str, profile_index: int = 0) -> TensorFormat:
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self.tensors[name].get("is_shape", False))

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        assert isinstance(name, str)
        tensor = self.tensors[name]
        fixed = [tensor["shape"]] * 3
        return [Dims(each) for each in (tensor["profiles"][profile_index] if "profiles" in tensor else fixed)]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        # The names are those of the real method, whose first argument is the profile nevertheless.
        assert isinstance(name, int)
        values: list[list[int]] = self.tensors[profile_index]["profiles"][name]
        return values

    def create_execution_context(
        self, strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    ) -> IExecutionContext:
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}

    def _fail(self, text: str) -> bool:
        self.engine.logger.log(ILogger.Severity.ERROR, text)
        return False

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle in STREAMS
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        least, _, most = self.engine.get_tensor_profile_shape(name, self._profile)
        if len(shape) != len(most) or not all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True)):
            return self._fail(f"Error Code 3: API Usage Error (set dimension for tensor {name} is out of its profile)")
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if not memory:
            return self._fail(f"Error Code 3: API Usage Error (no address for {name})")
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        self._allocators[name] = output_allocator
        return True

    def infer_shapes(self) -> list[str]:
        missing = []
        for name in self.engine._inputs:
            needed = self._addresses if self.engine.is_shape_inference_io(name) else self._shapes
            if name not in needed:
                missing.append(name)
        return missing

    def get_tensor_shape(self, name: str) -> Dims:
        """-1 for what only an execution decides."""
        if name in self.engine._inputs:
            return Dims(self._shapes.get(name, self.engine.tensors[name]["shape"]))
        tensor = self.engine.tensors[name]
        if self.engine.operation in ("add_sub", "identity"):
            first = self.engine._inputs[0]
            return Dims(self._shapes.get(first, tensor["shape"]))
        if self.engine.operation == "fill":
            values = self._read("SHAPE")
            return Dims(values.tolist() if name == "FILLED" else tensor["shape"])
        return Dims(tensor["shape"])

    def execute_async_v3(self, stream_handle: int) -> bool:
        run_stream(stream_handle)
        results = OPERATIONS[self.engine.operation](self)
        for name, value in results.items():
            array = np.ascontiguousarray(value, self._dtype(name))
            if name in self._allocators:
                allocator = self._allocators[name]
                self._addresses[name] = allocator.reallocate_output_async(name, 0, array.nbytes, 256, stream_handle)
                if not self._addresses[name]:
                    return self._fail("Error Code 2: OutOfMemory (no memory for an output)")
                allocator.notify_shape(name, Dims(array.shape))
            address = self._addresses[name]
            # Later than this call returns, as on a GPU.
            STREAMS[stream_handle].append(lambda to=address, array=array: _write(to, array))  # type: ignore[misc]
        return True

    def _dtype(self, name: str) -> np.dtype[Any]:
        return np.dtype(TYPES[self.engine.tensors[name]["type"]])

    def _read(self, name: str) -> np.ndarray[Any, Any]:
        shape = tuple(self.get_tensor_shape(name))
        size = int(np.prod(shape)) * self._dtype(name).itemsize
        return np.frombuffer(ctypes.string_at(self._addresses[name], size), self._dtype(name)).reshape(shape)


def _write(address: int, array: np.ndarray[Any, Any]) -> None:
    ctypes.memmove(address, array.tobytes(), array.nbytes)


def _add_sub(context: IExecutionContext) -> dict[str, Any]:
    first, second = context._read("INPUT0"), context._read("INPUT1")
    return {"OUTPUT0": first + second, "OUTPUT1": first - second}


def _identity(context: IExecutionContext) -> dict[str, Any]:
    return {"OUTPUT0": context._read("INPUT0")}


def _nonzero(context: IExecutionContext) -> dict[str, Any]:
    """The places of the values that are not zero, which only the values decide."""
    return {"OUTPUT0": np.stack(np.nonzero(context._read("INPUT0")), axis=1)}


def _fill(context: IExecutionContext) -> dict[str, Any]:
    """A tensor of the shape SHAPE, each row with the first value of its item, and that shape."""
    shape = tuple(context._read("SHAPE").tolist())
    rows = context._read("VALUE").reshape(shape[0], -1)[:, :1]
    return {"FILLED": np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), shape), "FILLED_SHAPE": shape}


OPERATIONS = {"add_sub": _add_sub, "identity": _identity, "nonzero": _nonzero, "fill": _fill}
