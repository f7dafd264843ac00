"""Misbehaves as CASE says."""

import os
import signal
import subprocess
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

PLAIN = np.arange(4, dtype=np.int32)


class TritonPythonModel:
    def execute(self, requests):
        case = requests[0].inputs()[0].as_numpy()[0].decode()
        return getattr(self, case)(requests)

    def answer(self, array):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]

    def fine(self, requests):
        return self.answer(PLAIN)

    def raises(self, requests):
        raise ValueError("why")

    def has_no_arguments(self, requests):
        assert sys.argv == [""]
        return self.answer(PLAIN)

    def wrong_dtype(self, requests):
        return self.answer(np.arange(4, dtype=np.float64))

    def huge(self, requests):
        return self.answer(np.ones(100_000_000, np.int32))

    def writes_its_input(self, requests):
        requests[0].inputs()[0].as_numpy()[0] = b"other"
        return self.answer(PLAIN)

    def forks(self, requests):
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
        return self.answer(PLAIN + os.waitstatus_to_exitcode(status))

    def runs_a_program(self, requests):
        printed = subprocess.run([sys.executable, "-c", "print(3)"], stdout=subprocess.PIPE, check=True).stdout
        return self.answer(PLAIN + int(printed))

    def leaves_a_child(self, requests):
        if os.fork() == 0:
            signal.pause()
        return self.answer(PLAIN)

    def returns_in_a_child(self, requests):
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
        return self.answer(PLAIN)

    def logs_in_a_child(self, requests):
        child = os.fork()
        if child == 0:
            try:
                pb_utils.Logger.log_info("from a child")
            except Exception:
                os._exit(5)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        return self.answer(PLAIN + os.waitstatus_to_exitcode(status))

    def prints(self, requests):
        print("printed by the model")
        print("printed to stderr", file=sys.stderr)
        pb_utils.Logger.log_warn("logged by the model")
        return self.answer(PLAIN)
