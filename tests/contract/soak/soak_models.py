"""Models that show their weight in every answer, so that a client can compute the whole answer itself.

`plain`, `cached` and `python` answer IN with SUM = IN + weight and PRODUCT = IN * weight. `chain` runs `plain` and then
`python` on its product. `tally` adds up the IN of a sequence in its state, and answers with that TOTAL and with TOTAL *
weight. `words` and `tokens` answer IN = [n] with n responses: IN * weight, IN * weight + 1, ..., `tokens` with one in
each of n iterations. A weight is a file or a constant of the graph; a reload takes a larger one.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import write_model
from tests.unit.onnx_models import build, constant, tensor, write_version

WIDTH = 8
PLAIN, CACHED, PYTHON, CHAIN, TALLY = "plain", "cached", "python", "chain", "tally"
WORDS, TOKENS = "words", "tokens"
# The processes of the latter take a second to start, on a busy machine more.
QUICK = (PLAIN, CACHED, CHAIN, TALLY)
SLOW = (PYTHON, WORDS, TOKENS)
WEIGHTED = (PLAIN, CACHED, PYTHON, TALLY, WORDS, TOKENS)

# Executions of `plain`, `python` and `tokens` never run at the same time.
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
_TOKENS = (
    _WEIGHT
    + """
    self.sent = {}

def execute(self, requests):
    for request in requests:
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        key = request.correlation_id()
        begins = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        number = self.sent[key] = 0 if begins else self.sent[key] + 1
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given * self.weight + np.int32(number))])
        if number + 1 < int(given.flat[0]):
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            request.get_response_sender().send(response)
        else:
            del self.sent[key]
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
_MANY = """
model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_ITERATIVE = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } }"
_TALLY = f"""
max_batch_size: 8
input {{ name: "IN" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "TOTAL" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
output {{ name: "PRODUCT" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
instance_group {{ kind: KIND_CPU count: 2 }}
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  oldest {{ max_candidate_sequences: 3 }}
  state {{
    input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ {WIDTH} ]
    initial_state {{ name: "nothing" data_type: TYPE_INT32 dims: [ {WIDTH} ] zero_data: true }}
  }}
}}
"""


def write_models(repository: Path) -> None:
    """All of them, with the weight 1."""
    write_version(_graph(1), repository, PLAIN, _BATCHED + _TENSORS + _GROUP)
    write_version(_graph(1), repository, CACHED, _BATCHED + _TENSORS + "response_cache { enable: true }")
    write_model(repository, PYTHON, _PYTHON, "dynamic_batching {}" + _TENSORS + _GROUP)
    write_model(repository, WORDS, _WORDS, _MANY + "instance_group { kind: KIND_CPU }", max_batch_size=0)
    one = f"instance_group {{ kind: KIND_CPU {_TURNS} }}"
    write_model(repository, TOKENS, _TOKENS, _MANY + _ITERATIVE + one, max_batch_size=4)
    write_version(_tally(1), repository, TALLY, _TALLY)
    for name in SLOW:
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
    if name in (PLAIN, CACHED, TALLY):
        aside = repository / f".{name}"
        graph = _tally(weight) if name == TALLY else _graph(weight)
        aside.write_bytes(graph.SerializeToString())
        aside.replace(version / "model.onnx")
    elif name in SLOW:
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


def _tally(weight: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["IN", "BEFORE"], ["TOTAL"]),
        helper.make_node("Identity", ["TOTAL"], ["AFTER"]),
        helper.make_node("Mul", ["TOTAL", "WEIGHT"], ["PRODUCT"]),
    ]
    return build(
        nodes,
        [tensor(name, "INT32", ["batch", WIDTH]) for name in ("IN", "BEFORE")],
        [tensor(name, "INT32", ["batch", WIDTH]) for name in ("TOTAL", "PRODUCT", "AFTER")],
        [constant("WEIGHT", [weight], "INT32")],
    )
