from __future__ import annotations

import subprocess
import sys

from tests.project import ROOT

SCRIPT = """
import sys
import trident.core.grpc.request, trident.core.grpc.response
import trident.core.grpc.admin_messages, trident.core.grpc.admin_messages, trident.core.grpc.admin_messages
import trident.core.grpc.admin_messages, trident.core.grpc.admin_messages
print("google.protobuf" in sys.modules)
from trident.core.grpc.schema import ModelInferRequest as ours
print("grpc" in sys.modules, "tritonclient.grpc" in sys.modules)
from tritonclient.grpc.service_pb2 import ModelInferRequest as theirs
print(ours is theirs)
"""
THE_OTHER_WAY_ROUND = """
from tritonclient.grpc.service_pb2 import ModelInferRequest as theirs
from trident.core.grpc.schema import ModelInferRequest as ours
print(ours is theirs)
"""


def output_of(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_protobuf_is_imported_with_the_messages_and_grpc_never() -> None:
    assert output_of(SCRIPT) == ["False", "False", "False", "True"]


def test_a_client_that_was_imported_before_has_the_same_messages() -> None:
    assert output_of(THE_OTHER_WAY_ROUND) == ["True"]
