"""Sends the words of a text one by one, as a language model sends its tokens.

text BYTES [1] -> word BYTES [1], a response for each word. The parameter `pause_ms` of the configuration is the pause
before each.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.pause_s = float(parameters["pause_ms"]["string_value"]) / 1000

    def execute(self, requests):
        for request in requests:
            self.stream(request, request.get_response_sender())

    def stream(self, request, sender):
        text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
        for word in text.split():
            if sender.is_cancelled():  # the client went away
                break
            time.sleep(self.pause_s)
            tensor = pb_utils.Tensor("word", np.array([word.encode()], np.object_))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
