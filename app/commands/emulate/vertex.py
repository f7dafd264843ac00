"""`trident emulate vertex`: serve a model in a container of this machine as the platform would."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.commands.emulate.options import stop_signals
from app.commands.emulate.vertex_options import read_vertex_options
from app.emulators.vertex.deployment import Deployment
from app.emulators.vertex.emulator import Emulator
from app.process.environment import process_environment
from core.observability.console import print_line

_SDK = """\
  from google.auth.credentials import AnonymousCredentials
  from google.cloud import aiplatform_v1
  client = aiplatform_v1.PredictionServiceClient(
      transport="rest", client_options={{"api_endpoint": "{url}"}}, credentials=AnonymousCredentials())
  client.predict(endpoint="{endpoint}", instances=[…])"""
_CURL = """\
  curl -d @body {url}/v1/{endpoint}/invoke/PATH"""


def emulate_vertex(arguments: Sequence[str]) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP, or the end of the job, and return the exit status.

    The status is 1 if a limit of the platform was broken or an instance of the job has no prediction, else 0.
    Raises BadOption, and ConfigInvalid for a model that cannot be used. Call it from the main thread.
    """
    options = read_vertex_options(arguments, process_environment())
    emulator = Emulator(options, sys.stdout, sys.stderr)
    with stop_signals() as stopped:
        return emulator.run(stopped, lambda url: print_line(example(options.deployment, url), sys.stdout))


def example(deployment: Deployment, url: str) -> str:
    """An example of a call, for the user."""
    return (_CURL if deployment.is_invoked else _SDK).format(url=url, endpoint=deployment.endpoint)
