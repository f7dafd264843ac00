"""A decoupled model answers with none, one or many responses over one stream: in the order in which it sends them,
beside other requests, whether its execution has returned or not; and so does an ensemble of it.

As NVIDIA's L0_decoupled, without its sleeps: a request is a score, which says who sends next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.grpc.grpc_requests import Responses, assert_simple, client_of, simple_inputs, tensor
from tests.contract.python.python_models import write_model
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

CONFIG = """
model_transaction_policy { decoupled: true }
input [ { name: "WHO" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "SCORE" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# A request WHO stays open until a score has named it as -WHO; that is its last response, with the flag. WHO 0 is
# nobody: its score is played, and it ends without a response. In its own score a request may name itself.
ORCHESTRA = """
def initialize(self, args):
    self.players = {}

def execute(self, requests):
    for request in requests:
        who = int(pb_utils.get_input_tensor_by_name(request, "WHO").as_numpy()[0])
        sender = request.get_response_sender()
        self.players[who] = [sender, 0]
        for player in pb_utils.get_input_tensor_by_name(request, "SCORE").as_numpy():
            self.play(abs(int(player)), player < 0)
        if not who:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

def play(self, who, is_last):
    sender, number = self.players[who]
    tensor = pb_utils.Tensor("OUT", np.array([who, number], np.int32))
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
    sender.send(pb_utils.InferenceResponse([tensor]), flags=flags)
    self.players[who][1] += 1
"""
# A response: who, its number, and whether it is the last one. Nobody's only one is empty.
Told = tuple[int, int, bool]
NOBODY = (0, 0, True)


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("order")
    write_model(folder / "models", "orchestra", ORCHESTRA, CONFIG, max_batch_size=0)
    mapped = step("orchestra", {"WHO": "WHO", "SCORE": "SCORE"}, {"OUT": "OUT"})
    tensors = [("WHO", "TYPE_INT32", [1]), ("SCORE", "TYPE_INT32", [-1])]
    write_ensemble(folder / "models", "hall", tensors, [("OUT", "TYPE_INT32", [2])], [mapped], batch=0)
    link_models(folder / "models", "simple")
    with ServerProcess(folder / "models", folder / "log", "--shutdown-grace-secs=0") as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture(params=["orchestra", "hall"])
def stage(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Stage]:
    with client_of(server) as client:
        made = Stage(client, request.param)
        yield made
        client.stop_stream()


class Stage:
    """One stream to one of the models."""

    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self._model = model
        self.responses = Responses()
        client.start_stream(self.responses.put)

    def enter(self, who: int, *score: int) -> None:
        """Ask as `who`, and have `score` played."""
        inputs = [
            tensor("WHO", np.array([who], np.int32), "INT32"),
            tensor("SCORE", np.array(score, np.int32), "INT32"),
        ]
        self._client.async_stream_infer(self._model, inputs, request_id=str(who), enable_empty_final_response=True)

    def ask_another(self) -> None:
        self._client.async_stream_infer("simple", simple_inputs(7), request_id="another")

    def told(self, count: int) -> list[Told]:
        """The next `count` responses."""
        return [self._told(self.responses.next_result()) for _ in range(count)]

    @staticmethod
    def _told(result: Any) -> Told:
        response = result.get_response()
        who, number = result.as_numpy("OUT").tolist() if response.outputs else (0, 0)
        assert response.id == str(who)
        return who, number, response.parameters["triton_final_response"].bool_param


def solo(who: int, count: int) -> list[Told]:
    """All responses to a request."""
    return [(who, number, number == count - 1) for number in range(count)]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("clients", [1, 5])
def test_one_to_one_and_one_to_many(stage: Stage, count: int, clients: int) -> None:
    """The model sends while it executes the request, and after it has executed all of them."""
    for who in range(1, clients + 1):
        stage.enter(who, *[who] * (count - 1), -who)
    assert stage.told(count * clients) == [told for who in range(1, clients + 1) for told in solo(who, count)]
    for who in range(1, clients + 1):
        stage.enter(who)
    stage.enter(0, *[player for who in range(1, clients + 1) for player in [*[who] * (count - 1), -who]])
    assert stage.told(count * clients + 1) == [
        *(told for who in range(1, clients + 1) for told in solo(who, count)),
        NOBODY,
    ]


@pytest.mark.parametrize(
    "score",
    [
        (1, 2, 1, 2, 1, 2, -1, -2),
        (2, 2, 2, -2, 1, 1, 1, -1),
        (1, 2, 2, 2, -2, 1, 1, -1),
        (1, 1, 1, 2, 2, 2, -2, -1),
    ],
)
def test_responses_come_in_the_order_in_which_they_are_sent(stage: Stage, score: tuple[int, ...]) -> None:
    """Interleaved; the second request first; in the middle of the first; and the first one's last at the end."""
    stage.enter(1)
    stage.enter(2)
    stage.enter(0, *score)
    numbers = {1: iter(range(4)), 2: iter(range(4))}
    assert stage.told(9) == [*((abs(who), next(numbers[abs(who)]), who < 0) for who in score), NOBODY]


def test_an_open_request_holds_up_no_other(stage: Stage) -> None:
    stage.enter(1, 1)
    assert stage.told(1) == [(1, 0, False)]
    stage.ask_another()
    assert_simple(stage.responses.next_result(), 7)
    stage.enter(2, 2, -2)
    assert stage.told(2) == solo(2, 2)
    stage.enter(0, 1, -1)
    assert stage.told(3) == [(1, 1, False), (1, 2, True), NOBODY]
