"""`trident init`: writes a Python model that serves as it stands, with a golden request that tests it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trident.adapters.common.options import FOLDER, BadOption, Option
from trident.app.settings.sources import read_values
from trident.core.errors import InvalidRequest
from trident.core.repository.repository import CONFIG_FILE, GOLDEN_REQUESTS

REPOSITORY = Option.of_command("repository", FOLDER, "models", "Folder of the models; default models.")
ACCEPTED = (REPOSITORY,)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

_MODEL = '''\
"""Scales the numbers of each row so that they sum to 1. Put your own model in its place."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Load what `execute` needs, once for each instance: weights lie beside this file."""
        pb_utils.Logger.log_info(f"{args['model_name']} version {args['model_version']} is ready")

    def execute(self, requests):
        """Answer each request of a batch, in order. Rows of a request are the first dimension."""
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sums = numbers.sum(axis=1, keepdims=True)
            if not np.all(sums):
                error = pb_utils.TritonError("a row of INPUT sums to 0", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", numbers / sums)]))
        return responses

    def finalize(self):
        """Close what `initialize` opened."""
'''
_CONFIG = """\
backend: "python"
# As many rows, of several requests, as `execute` gets at once.
max_batch_size: 64
dynamic_batching { }
# The shape of one row: -1 is any number.
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
# Each instance is a process of its own.
instance_group { count: 1 kind: KIND_CPU }
"""
_GOLDEN = """\
{
  "request": {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
  "response": {"outputs": [{"name": "OUTPUT", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]}
}
"""
FILES = {CONFIG_FILE: _CONFIG, "1/model.py": _MODEL, f"{GOLDEN_REQUESTS}/first.json": _GOLDEN}


def init(arguments: Sequence[str]) -> int:
    """Write the model. Returns 0. Raises BadOption, and InvalidRequest for a folder that cannot be written."""
    values, words = read_values(ACCEPTED, arguments)
    if len(words) != 1 or not _NAME.fullmatch(words[0]):
        raise BadOption("a name of letters, digits, '_', '-' and '.' is expected: trident init NAME")
    (name,) = words
    repository = Path(values[REPOSITORY.flag])
    folder = repository / name
    try:
        folder.mkdir(parents=True)
        for path, text in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
    except FileExistsError:
        raise BadOption(f"{folder} is there already: choose another name, or remove it") from None
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from error
    print(f"""\
{folder}/
  1/model.py           the model: it scales the numbers of each row so that they sum to 1
  config.pbtxt         its inputs and outputs, and how it batches
  golden/first.json    a request and its answer, which every load asks

serve it, again after each change:  trident serve {repository} --reload
ask it:                             trident request {name}
test it, without a server:          trident validate {repository}""")
    return 0
