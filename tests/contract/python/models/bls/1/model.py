"""Asks another model for the sum and difference of IN with itself, in the way HOW, and returns what it answers."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        how = self.text(request, "HOW")
        model = self.text(request, "MODEL")
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if how == "sync":
            return self.ask(model, values, request).exec()
        if how == "async":
            return asyncio.run(self.ask_twice(model, values, request))
        if how == "count":
            return self.counted(self.counting(model, int(values[0])).exec(decoupled=True))
        if how == "count async":
            return asyncio.run(self.count_async(model, int(values[0])))
        if how == "cancel":
            responses = self.counting(model, -1).exec(decoupled=True)
            received = next(iter(responses))
            responses.cancel()
            rest = sum(1 for _ in responses)
            return self.response(received.output_tensors()[0].as_numpy(), np.array([rest]))
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(f"no way '{how}'", pb_utils.TritonError.INVALID_ARG)
        )

    async def ask_twice(self, model, values, request):
        answers = await asyncio.gather(*[self.ask(model, values, request).async_exec() for _ in range(2)])
        assert answers[0].has_error() == answers[1].has_error()
        return answers[1]

    async def count_async(self, model, end):
        return self.counted(await self.counting(model, end).async_exec(decoupled=True))

    def counted(self, responses):
        numbers = []
        for response in responses:
            if response.has_error():
                return response
            numbers += [tensor.as_numpy()[0] for tensor in response.output_tensors()]
        assert sum(len(response.output_tensors()) for response in responses) == len(numbers)
        return self.response(np.array(numbers), np.array([len(numbers)]))

    def response(self, *results):
        outputs = [pb_utils.Tensor(f"OUTPUT{index}", result.astype(np.float32)) for index, result in enumerate(results)]
        return pb_utils.InferenceResponse(outputs)

    def ask(self, model, values, request):
        batch = values.reshape(1, -1)
        return pb_utils.InferenceRequest(
            request_id=request.request_id(),
            model_name=model,
            requested_output_names=["OUTPUT0", "OUTPUT1"],
            inputs=[pb_utils.Tensor("INPUT0", batch), pb_utils.Tensor("INPUT1", batch)],
            trace=request.trace(),
        )

    def counting(self, model, end):
        return pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", np.array([end], np.int32))],
        )

    def text(self, request, name):
        return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0].decode()
