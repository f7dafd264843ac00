"""As bls, in a coroutine: all requests of a batch ask at once. HOW may be `exec`, which blocks the event loop."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self.answer(request) for request in requests])

    async def answer(self, request):
        how, model = [
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0].decode() for name in ("HOW", "MODEL")
        ]
        batch = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().reshape(1, -1)
        asked = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=["OUTPUT0", "OUTPUT1"],
            inputs=[pb_utils.Tensor(name, batch) for name in ("INPUT0", "INPUT1")],
        )
        return asked.exec() if how == "exec" else await asked.async_exec()
