"""Asks `repeat` to count without an end, and cancels that after its first response, which it returns."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            asked = pb_utils.InferenceRequest(
                model_name="repeat", requested_output_names=["OUT"], inputs=request.inputs()
            )
            responses = asked.exec(decoupled=True)
            first = next(iter(responses))
            responses.cancel()
            for _ in responses:
                pass
            answers.append(first)
        return answers
