"""Returns its input and the request's other fields as JSON; answers with parameters."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "id": request.request_id(),
                "correlation id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "outputs": sorted(request.requested_output_names()),
                "is cancelled": request.is_cancelled(),
                "directory": pb_utils.get_model_dir(),
            }
            outputs = [
                pb_utils.Tensor("OUT", request.inputs()[0].as_numpy()),
                pb_utils.Tensor("REQUEST", np.array([json.dumps(seen)], np.object_)),
                pb_utils.Tensor("NOT CONFIGURED", np.zeros(1)),
            ]
            parameters = {"bool": True, "int": 7, "str": "text"}
            responses.append(pb_utils.InferenceResponse(outputs, parameters=parameters))
        return responses
