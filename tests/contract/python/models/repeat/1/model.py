"""Counts up to IN, in `execute`. A negative IN counts until the client goes away."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            end = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            number = 0
            while number != end and not sender.is_cancelled():
                tensor = pb_utils.Tensor("OUT", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor], parameters={"number": number}))
                number += 1
                if end < 0:
                    time.sleep(0.001)
            if end < 0:
                pb_utils.Logger.log_info("repeat was cancelled")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
