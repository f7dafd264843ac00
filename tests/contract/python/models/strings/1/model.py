"""Returns strings in upper case: as an array of objects, and as one of numpy's own texts."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            upper = [[value.decode().upper() for value in row] for row in values]
            outputs = [
                pb_utils.Tensor("OBJECTS", np.array(upper, np.object_).reshape(values.shape)),
                pb_utils.Tensor("TEXTS", np.array(upper).astype(str).reshape(values.shape)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
