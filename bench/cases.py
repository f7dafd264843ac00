"""The requests of the benchmark: the model, the request body, and the arrays of the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trident.core.config.golden import GoldenTensor
from trident.core.inference.tensors import BY_NAME
from trident.tools.bench.requests import v2_body

Array = npt.NDArray[np.generic]

DATATYPES = {"FP32": np.dtype(np.float32), "INT32": np.dtype(np.int32)}
IMAGE = (3, 224, 224)
DIGIT = (1, 28, 28)
SEED = 3
LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `inputs` are name, datatype and shape of one item, without the batch dimension."""

    key: str
    title: str
    model: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    binary: bool
    # Slow cells run longer; otherwise a handful of requests would decide them.
    stretch: int = 1
    rows: int = 1

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def arrays(self) -> dict[str, Array]:
        """The input values, the same in every run."""
        random = np.random.default_rng(SEED)
        made: dict[str, Array] = {}
        for name, datatype, shape in self.inputs:
            if datatype == "INT32":
                made[name] = random.integers(0, 100, (self.rows, *shape)).astype(np.int32)
            else:
                # Doubles, so that JSON has as many digits as a client's float() prints.
                made[name] = random.random((self.rows, *shape))
        return made

    def feeds(self) -> dict[str, Array]:
        """The inputs as an ONNX Runtime session takes them."""
        arrays = self.arrays()
        return {name: arrays[name].astype(DATATYPES[datatype]) for name, datatype, _ in self.inputs}

    def body(self) -> tuple[bytes, dict[str, str]]:
        """The request body and its headers."""
        arrays = self.feeds() if self.binary else self.arrays()
        inputs = [GoldenTensor(name, BY_NAME[datatype], arrays[name]) for name, datatype, _ in self.inputs]
        if not self.binary:
            return v2_body({}, inputs, is_binary=False)[0], {"Content-Type": "application/json"}
        body, size = v2_body({"parameters": {"binary_data_output": True}}, inputs)
        return body, {"Content-Type": "application/octet-stream", LENGTH: str(size)}

    def answer(self, body: bytes, header_length: str | None) -> dict[str, Array]:
        """Parse the outputs of a response. KeyError or ValueError if the body is not a response."""
        size = int(header_length or len(body))
        document = json.loads(body[:size])
        outputs: dict[str, Array] = {}
        for tensor in document["outputs"]:
            dtype = DATATYPES[tensor["datatype"]]
            if header_length:
                end = size + tensor["parameters"]["binary_data_size"]
                array: Array = np.frombuffer(body[size:end], dtype)
                size = end
            else:
                array = np.array(tensor["data"], dtype)
            outputs[tensor["name"]] = array.reshape(tensor["shape"])
        return outputs


_PAIR = (("INPUT0", "INT32", (16,)), ("INPUT1", "INT32", (16,)))
_PAIR_OUT = ("OUTPUT0", "OUTPUT1")
_IMAGE = (("INPUT", "FP32", IMAGE),)
_DIGIT = (("INPUT", "FP32", (1, 8, 8)),)
_LARGER_DIGIT = (("INPUT", "FP32", DIGIT),)
_OUT = ("OUTPUT",)

ADD_SUB_JSON = Case("a-json", "add/sub of 16 integers, JSON", "simple", _PAIR, _PAIR_OUT, binary=False)
ADD_SUB = Case("a-binary", "add/sub of 16 integers, binary", "simple", _PAIR, _PAIR_OUT, binary=True)
ECHO = Case("b", "600 KB tensor echoed, binary", "identity", (("INPUT", "FP32", (150_000,)),), _OUT, binary=True)
IMAGE_MEAN = Case(
    "c-mean", "3x224x224 image as JSON, one number out", "image_mean", _IMAGE, _OUT, binary=False, stretch=2
)
IMAGE_ECHO = Case("c-echo", "3x224x224 image as JSON, echoed", "image_echo", _IMAGE, _OUT, binary=False, stretch=2)
CASES: tuple[Case, ...] = (
    ADD_SUB_JSON,
    ADD_SUB,
    ECHO,
    IMAGE_MEAN,
    IMAGE_ECHO,
    Case("d-json", "digit classifier, JSON", "digits", _DIGIT, _OUT, binary=False),
    Case("d-binary", "digit classifier, binary", "digits", _DIGIT, _OUT, binary=True),
    Case("e", "ResNet-50-like graph, binary image", "resnet", _IMAGE, _OUT, binary=True, stretch=3),
    Case("f-json", "28x28 digit CNN, JSON", "digits_cnn", _LARGER_DIGIT, _OUT, binary=False),
    Case("f-binary", "28x28 digit CNN, binary", "digits_cnn", _LARGER_DIGIT, _OUT, binary=True),
)
BY_KEY = {case.key: case for case in CASES}
# Not in the run beside a Flask server, which would need minutes for it.
LARGE = Case(
    "large", "16 MB tensor echoed, binary", "identity", (("INPUT", "FP32", (4 << 20,)),), _OUT, binary=True, stretch=8
)
