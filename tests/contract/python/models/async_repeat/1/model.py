"""Counts up to IN in a coroutine. Executions overlap: the one of 0 ends when the next one comes."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.next_one = None

    async def execute(self, requests):
        for request in requests:
            end = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if end == 0:
                self.next_one = asyncio.Event()
                await self.next_one.wait()
            elif self.next_one is not None:
                self.next_one.set()
            sender = request.get_response_sender()
            for number in range(end):
                await asyncio.sleep(0)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
