"""Python models that ask other models, and that load and unload them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.triton_answers import Answers
from tests.triton_answers.python_models import CODE, DECOUPLED, run, values, write_model

OPTIONS = (
    "--model-control-mode=explicit",
    "--load-model=code",
    "--load-model=target",
    "--load-model=many",
    "--load-model=simple",
)
CODES = "an error of the model that was asked keeps its code"
UNKNOWN = "the text says what is unknown, too"
FLAGS = "flags are those of sequences"
SEEN = 'SEEN [1, 1] object [1, 1] [[b\'["", 0, 0, 0, "{}", ["SEEN"], null]\']]'


def unknown(model: str, version: str = "") -> str:
    return (
        f"error __ErrorCode.INTERNAL Model {model} - Error when running inference: Failed for execute the inference "
        f"request. Model '{model}' is not ready. Request for unknown model: '{model}'{version} is not found"
    )


OTHERWISE: dict[str, tuple[str, Any]] = {
    "exec: ask('target', one(), outputs=['SEEN'], flags=4)": (FLAGS, SEEN),
    "exec: ask('target', one(), outputs=['SEEN'], flags=2**31)": (FLAGS, SEEN),
    **{
        f"exec: ask('target', one(), model_version={version})": (UNKNOWN, unknown("target", f" version {version}"))
        for version in (2, 0, -2)
    },
    **{f"exec: ask('{model}', one())": (UNKNOWN, unknown(model)) for model in ("nothing", "", "other", "wrong")},
    "exec: ask('target', tensor('IN', np.array([[1, -1]], np.int32)))": (CODES, "error __ErrorCode.NOT_FOUND refused"),
    "streams: stream('target', tensor('IN', np.array([[1, -1]], np.int32)))": (
        CODES,
        "['error __ErrorCode.NOT_FOUND refused']",
    ),
    "streams: stream('nothing', one())": (UNKNOWN, f'["{unknown("nothing")}"]'),
    "streams: stream('many', one(), model_version=3)": (UNKNOWN, f'["{unknown("many", " version 3")}"]'),
    "control: pb_utils.load_model('wrong')": (
        "the frames of the import system are left out",
        "TritonModelException: Failed to load model: Failed to process the request for model 'code_0_0', message: load "
        "failed for model 'wrong': version 1 is at UNAVAILABLE state: Internal: ValueError: wrong\n\nAt:\n  model.py: "
        "<module>\n;\n",
    ),
    "async: an unknown model": (
        UNKNOWN,
        {
            "status": 200,
            "type": "application/json",
            "body": {
                "model_name": "code",
                "model_version": "1",
                "outputs": [{"name": "ANSWERS", "datatype": "BYTES", "shape": [1], "data": [unknown("nothing")]}],
            },
        },
    ),
}

HELPERS = """

def tensor(name, array):
    return pb_utils.Tensor(name, array)


def request(model_name, *inputs, outputs=("OUT",), **more):
    return pb_utils.InferenceRequest(
        model_name=model_name, inputs=list(inputs), requested_output_names=list(outputs), **more
    )


def ask(*arguments, **more):
    return request(*arguments, **more).exec()


def stream(*arguments, **more):
    return list(request(*arguments, **more).exec(decoupled=True))


def one(*more):
    return tensor("IN", np.array([[1, 2, *more]], np.int32))
"""
TARGET = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        responses = [self.response(request) for request in requests]
        if not self.decoupled:
            return responses
        for request, response in zip(requests, responses):
            sender = request.get_response_sender()
            for _ in range(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0]):
                sender.send(response)
            sender.send(flags=1)

    def response(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if array[0, 1] == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused", pb_utils.TritonError.NOT_FOUND))
        if array[0, 1] == -2:
            raise ValueError("wrong")
        seen = [request.request_id(), request.correlation_id(), request.flags(), request.timeout()]
        seen += [request.parameters(), sorted(request.requested_output_names()), request.trace().get_context()]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", array * 2), pb_utils.Tensor("SEEN", np.array([[json.dumps(seen)]], np.object_))]
        )
"""
TARGET_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""


def write_models(folder: Path) -> None:
    code = CODE.replace("\n\nclass TritonPythonModel", HELPERS + "\n\nclass TritonPythonModel")
    code = code.replace('"Tensor": pb_utils.Tensor,', '"Tensor": pb_utils.Tensor,\n            **globals(),')
    write_model(folder, "code", code)
    write_model(folder, "target", TARGET, TARGET_CONFIG)
    write_model(folder, "many", TARGET, TARGET_CONFIG + DECOUPLED)
    write_model(folder, "other", TARGET, TARGET_CONFIG)
    write_model(folder, "wrong", "raise ValueError('wrong')", TARGET_CONFIG)
    shutil.copytree(ROOT / "tests" / "golden" / "models" / "simple", folder / "simple")


ROW = "np.arange(16, dtype=np.int32).reshape(1, 16)"


def ask_exec(server: ServerProcess) -> Answers:
    return values(
        server,
        [
            "ask('target', one())",
            "ask('target', one(3, 4))",
            "ask('target', one(), outputs=['OUT', 'SEEN'])",
            "ask('target', one(), outputs=['SEEN'], request_id='r', correlation_id=5, flags=3, timeout=1000000)",
            "ask('target', one(), outputs=['SEEN'], correlation_id='five', flags=1)",
            "ask('target', one(), outputs=['SEEN'], parameters={'a': 1, 'b': True, 'c': 'ü', 'd': -2**40})",
            "ask('target', one(), outputs=['SEEN'], parameters={'priority': 3, 'timeout': 5, 'sequence_id': 7})",
            "ask('target', one(), outputs=['SEEN'], parameters={'triton_a': 1})",
            "ask('target', one(), outputs=['SEEN'], flags=4)",
            "ask('target', one(), outputs=['SEEN'], flags=2**31)",
            "ask('target', one(), outputs=[])",
            "ask('target', one(), outputs=['X'])",
            "ask('target', one(), outputs=['OUT', 'X'])",
            "ask('target', one(), model_version=1)",
            "ask('target', one(), model_version=2)",
            "ask('target', one(), model_version=0)",
            "ask('target', one(), model_version=-2)",
            "ask('target')",
            "ask('target', one(), one())",
            "ask('target', tensor('X', np.zeros((1, 2), np.int32)))",
            "ask('target', one(), tensor('X', np.zeros((1, 2), np.int32)))",
            "ask('target', tensor('IN', np.zeros((1, 2), np.float32)))",
            "ask('target', tensor('IN', np.array([['a', 'b']], np.object_)))",
            "ask('target', tensor('IN', np.zeros(2, np.int32)))",
            "ask('target', tensor('IN', np.zeros((1, 2, 1), np.int32)))",
            "ask('target', tensor('IN', np.zeros((5, 2), np.int32)))",
            "ask('target', tensor('IN', np.zeros((0, 2), np.int32)))",
            "ask('target', tensor('IN', np.array(5, np.int32)))",
            "ask('target', tensor('IN', np.array([[1, -1]], np.int32)))",
            "ask('target', tensor('IN', np.array([[1, -2]], np.int32))).error().message().splitlines()[0]",
            "ask('nothing', one())",
            "ask('', one())",
            "ask('other', one())",
            "ask('wrong', one())",
            "ask('many', one())",
            f"ask('simple', tensor('INPUT0', {ROW}), tensor('INPUT1', {ROW}), outputs=['OUTPUT0', 'OUTPUT1'])",
            f"ask('simple', tensor('INPUT0', {ROW}), tensor('INPUT1', {ROW}), outputs=['OUTPUT1'])",
            f"ask('simple', tensor('INPUT0', {ROW}), outputs=['OUTPUT0'])",
            f"ask('simple', tensor('INPUT0', {ROW}), tensor('INPUT1', {ROW}[:, :3]), outputs=['OUTPUT0'])",
            f"ask('simple', tensor('INPUT0', {ROW}), tensor('INPUT1', {ROW}.astype(np.int8)), outputs=['OUTPUT0'])",
            "ask('target', one()).output_tensors()[0].as_numpy().flags.writeable",
            "kept.update(sent=request('target', one()))",
            "kept['sent'].exec()",
            "kept['sent'].exec() ",
            "kept['sent'].exec(decoupled=None)",
            "type(kept['sent'].exec(decoupled=1)).__name__",
            "kept['sent'].exec(False)",
            "kept['sent'].async_exec()",
        ],
    )


def ask_streams(server: ServerProcess) -> Answers:
    return values(
        server,
        [
            "stream('many', tensor('IN', np.array([[2, 5]], np.int32)))",
            "stream('many', tensor('IN', np.array([[0, 5]], np.int32)))",
            "stream('target', one())",
            "stream('target', tensor('IN', np.array([[1, -1]], np.int32)))",
            "stream('nothing', one())",
            "stream('many', tensor('IN', np.zeros((1, 2), np.int8)))",
            "stream('many', one(), model_version=3)",
            "kept.update(iterator=request('many', one()).exec(decoupled=True))",
            "type(kept['iterator']).__name__",
            "iter(kept['iterator']) is kept['iterator']",
            "len(list(kept['iterator']))",
            "len(list(kept['iterator'])) ",
            "next(kept['iterator'])",
            "next(kept['iterator']) ",
            "next(kept['iterator'])  ",
            "len(kept['iterator'])",
            "request('many', one()).exec(decoupled=True) is None",
        ],
    )


COROUTINES = {
    "one": "await request('target', one()).async_exec()",
    "three": "await asyncio.gather(*(request('target', one(each)).async_exec() for each in range(3)))",
    "a stream": "list(await request('many', one()).async_exec(decoupled=True))",
    "an unknown model": "await request('nothing', one()).async_exec()",
    "a decoupled model": "await request('many', one()).async_exec()",
    "exec": "request('target', one()).exec()",
    "what it is": "type(request('target', one()).async_exec()).__name__",
}


def ask_async(server: ServerProcess) -> Answers:
    def code(expression: str) -> str:
        return (
            f"import asyncio\nasync def execute(requests):\n    value = described({expression})\n"
            "    return [pb_utils.InferenceResponse([Tensor('ANSWERS', np.array([value], np.object_))])]"
        )

    return {name: run(server, code(expression)) for name, expression in COROUTINES.items()}


def ask_control(server: ServerProcess) -> Answers:
    """Models that a model loads, unloads and asks for."""
    return values(
        server,
        [
            "pb_utils.is_model_ready('other')",
            "pb_utils.load_model('other')",
            "pb_utils.is_model_ready('other') ",
            "pb_utils.is_model_ready('other', '1')",
            "pb_utils.is_model_ready('other', '2')",
            "pb_utils.is_model_ready(model_name='other', model_version='')",
            "pb_utils.is_model_ready('other', 'x')",
            "pb_utils.is_model_ready('other', '0')",
            "pb_utils.is_model_ready('other', 1)",
            "pb_utils.is_model_ready('nothing')",
            "pb_utils.is_model_ready('')",
            "pb_utils.is_model_ready(None)",
            "ask('other', one())",
            'pb_utils.load_model(\'other\', config=\'{"backend": "python", "max_batch_size": 2}\')',
            "pb_utils.load_model('other', config='{')",
            "pb_utils.load_model('other', config='[]')",
            "pb_utils.load_model('other', config=None)",
            "pb_utils.load_model('other', config={})",
            "pb_utils.load_model('other', files=[])",
            "pb_utils.load_model('other', files={})",
            "pb_utils.load_model('other', files={'file:1/model.py': 5})",
            "pb_utils.load_model('other', files={'file:1/model.py': 'x'})",
            "pb_utils.load_model('nothing')",
            "pb_utils.load_model(None)",
            "pb_utils.load_model()",
            "pb_utils.load_model(model_name='other')",
            "pb_utils.load_model('wrong')",
            "pb_utils.unload_model('other')",
            "pb_utils.unload_model('other', True)",
            "pb_utils.unload_model(model_name='other', unload_dependents=False)",
            "pb_utils.unload_model('other', None)",
            "pb_utils.unload_model('other', 1)",
            "pb_utils.unload_model('nothing')",
            "pb_utils.unload_model('')",
            "pb_utils.unload_model(None)",
        ],
    )
