"""Models that show their weight in every answer, so that a client can compute the whole answer itself.

`plain`, `cached` and `python` answer IN with SUM = IN + weight and PRODUCT = IN * weight. `chain` runs `plain` and then
`python` on its product. `words` answers IN = [n] with n responses: IN * weight, IN * weight + 1, ... A weight is a file
or a constant of the graph; a reload takes a larger one.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import write_model
from tests.unit.onnx_models import build, constant, tensor, write_version

WIDTH = 8
PLAIN, CACHED, PYTHON, CHAIN, WORDS = "plain", "cached", "python", "chain", "words"
# The processes of the latter take a second to start, on a busy machine more.
QUICK = (PLAIN, CACHED, CHAIN)
SLOW = (PYTHON, WORDS)
WEIGHTED = (PLAIN, CACHED, PYTHON, WORDS)

# Executions of `plain` and `python` never run at the same time.
_TURNS = 'rate_limiter { resources { name: "turn" count: 1 } }'
_GROUP = f"instance_group {{ kind: KIND_CPU count: 2 {_TURNS} }}"
_BATCHED = "max_batch_size: 8 dynamic_batching {}"
_TENSORS = f"""
input {{ name: "IN" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "SUM" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "PRODUCT" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
"""
_WEIGHT = """
def initialize(self, args):
    with open(os.path.join(args["model_repository"], args["model_version"], "weight")) as file:
        self.weight = np.int32(file.read())

"""
_PYTHON = (
    _WEIGHT
    + """
def execute(self, requests):
    responses = []
    for request in requests:
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        tensors = [pb_utils.Tensor("SUM", given + self.weight), pb_utils.Tensor("PRODUCT", given * self.weight)]
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""
)
_WORDS = (
    _WEIGHT
    + """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        for number in range(int(given[0])):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given * self.weight + np.int32(number))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
_WORDS_TENSORS = """
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
instance_group { kind: KIND_CPU }
"""


def write_models(repository: Path) -> None:
    """All of them, with the weight 1."""
    write_version(_graph(1), repository, PLAIN, _BATCHED + _TENSORS + _GROUP)
    write_version(_graph(1), repository, CACHED, _BATCHED + _TENSORS + "response_cache { enable: true }")
    write_model(repository, PYTHON, _PYTHON, "dynamic_batching {}" + _TENSORS + _GROUP)
    write_model(repository, WORDS, _WORDS, _WORDS_TENSORS, max_batch_size=0)
    for name in (PYTHON, WORDS):
        write_weight(repository, name, 1)
    outputs = {"SUM": "SUM", "PRODUCT": "PRODUCT"}
    write_ensemble(
        repository,
        CHAIN,
        [("IN", "TYPE_INT32", [WIDTH])],
        [(name, "TYPE_INT32", [WIDTH]) for name in ("FIRST", *outputs)],
        [step(PLAIN, {"IN": "IN"}, {"SUM": "FIRST", "PRODUCT": "x"}), step(PYTHON, {"IN": "x"}, outputs)],
    )


def write_weight(repository: Path, name: str, weight: int) -> None:
    """Give the model another weight, which counts from its next load on."""
    version = repository / name / "1"
    if name in (PLAIN, CACHED):
        aside = repository / f".{name}"
        aside.write_bytes(_graph(weight).SerializeToString())
        aside.replace(version / "model.onnx")
    elif name in (PYTHON, WORDS):
        aside = repository / f".{name}"
        aside.write_text(str(weight))
        aside.replace(version / "weight")


def _graph(weight: int) -> onnx.ModelProto:
    return build(
        [helper.make_node("Add", ["IN", "WEIGHT"], ["SUM"]), helper.make_node("Mul", ["IN", "WEIGHT"], ["PRODUCT"])],
        [tensor("IN", "INT32", ["batch", WIDTH])],
        [tensor(name, "INT32", ["batch", WIDTH]) for name in ("SUM", "PRODUCT")],
        [constant("WEIGHT", [weight], "INT32")],
    )
