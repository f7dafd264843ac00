"""Turns texts into what the classifier reads: the numbers of their words, and a mask that is 0 where a text has ended.

raw_text BYTES [N,1] -> input_ids INT64 [N,64] and attention_mask INT64 [N,64].
"""

import re
import zlib

import numpy as np

try:
    import triton_python_backend_utils as pb_utils
except ImportError:  # the training script needs only `encode`
    pb_utils = None

LENGTH = 64
BUCKETS = 4096
TOKEN = re.compile(r"\w+|[^\w\s]|\n[ \t]*")


def tokens(text):
    """Words, punctuation, and the beginnings of lines with their indentation, at most LENGTH."""
    return [token.lower() for token in TOKEN.findall(text[: 32 * LENGTH])][:LENGTH]


def encode(text):
    """The numbers of the tokens, from 1 to BUCKETS - 1: words are hashed, so there is no vocabulary to ship."""
    return [1 + zlib.crc32(token.encode()) % (BUCKETS - 1) for token in tokens(text)]


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "raw_text").as_numpy()
        input_ids = np.zeros((len(texts), LENGTH), np.int64)
        for row, text in enumerate(texts[:, 0]):
            numbers = encode(text.decode("utf-8", "replace"))
            input_ids[row, : len(numbers)] = numbers
        attention_mask = (input_ids != 0).astype(np.int64)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("attention_mask", attention_mask)]
        )
