"""`upload`: a model, or a new version of one, with its container, whose settings the server checks.

Source: docs/spec/deploy.md section 5, docs/spec/vertex.md sections A1 and A2.
"""

from __future__ import annotations

import difflib
import re
import shlex
from argparse import Namespace
from collections.abc import Mapping

from google.cloud.aiplatform_v1 import (
    EnvVar,
    Model,
    ModelContainerSpec,
    Port,
    Probe,
    UploadModelRequest,
    UploadModelResponse,
)
from google.protobuf.duration_pb2 import Duration

from deploy.vertex.api import Vertex, pairs
from deploy.vertex.options import PROBES
from trident.adapters.common.options import PREFIX, BadOption
from trident.app.settings.reading import read_settings
from trident.app.settings.server import SERVER_OPTIONS
from trident.tools.emulators.vertex.container import (
    RESERVED_PREFIX,
    container_arguments,
    container_environment,
    platform_variables,
)
from trident.tools.emulators.vertex.endpoint import Deployment

_PORT = 8080
# The similarity of two names that differ by a misspelling; equal names have 1.
_LIKE = 0.9


def act(vertex: Vertex, options: Namespace) -> None:
    if options.no_default and not options.parent_model:
        raise BadOption.of("--no-default", "the first version of a model is its default")
    identity = options.parent_model or options.model_id
    name = vertex.model(identity)
    model = Model(
        display_name=name.rpartition("/")[2],
        artifact_uri=options.artifact_uri,
        container_spec=_container_spec(options),
        version_aliases=[*options.alias, *(["default"] if options.parent_model and not options.no_default else [])],
        labels=pairs(options.label, "--label"),
    )
    request = UploadModelRequest(
        parent=vertex.place,
        parent_model=name if options.parent_model else "",
        model_id=options.model_id or "",
        model=model,
        service_account=options.service_account,
    )
    vertex.call(
        f"upload {'a version of' if options.parent_model else 'the model'} {identity}",
        request,
        stand_in=UploadModelResponse(model=name, model_version_id="1"),
        report=lambda answer: f"--model={answer.model}@{answer.model_version_id}",
    )


def _container_spec(options: Namespace) -> ModelContainerSpec:
    """The container of a model. Raises BadOption, also for settings that the server would refuse."""
    variables = pairs(options.env, "--env")
    _check_names(variables)
    _check_server(options, variables)
    probes = {
        f"{name}_probe": parse_probe(text, f"--{name}-probe")
        for name in PROBES
        if (text := getattr(options, f"{name}_probe"))
    }
    return ModelContainerSpec(
        image_uri=options.image,
        args=options.container_arguments,
        env=[EnvVar(name=name, value=value) for name, value in variables.items()],
        ports=[Port(container_port=_PORT)],
        grpc_ports=[Port(container_port=options.grpc_port)] if options.grpc_port else [],
        invoke_route_prefix=options.invoke_route_prefix,
        deployment_timeout=Duration(seconds=options.deployment_timeout) if options.deployment_timeout else None,
        **probes,
    )


def _check_names(variables: Mapping[str, str]) -> None:
    """Check for misspelled prefixes; the server's settings check only variables with its prefix."""
    known = [variable for each in SERVER_OPTIONS.values() for variable in each.variables]
    for name in variables:
        if name.startswith(RESERVED_PREFIX):
            raise BadOption.of("--env", f"the platform reserves names that begin with {RESERVED_PREFIX}: '{name}'")
        meant = difflib.get_close_matches(name, known, n=1, cutoff=_LIKE)
        if meant and meant[0] != name and not name.startswith(PREFIX):
            raise BadOption.of("--env", f"the server does not know '{name}'; did you mean {meant[0]}?")


def _check_server(options: Namespace, variables: Mapping[str, str]) -> None:
    """Read the settings of the server in the container, and compare its ports. Raises BadOption."""
    platform = platform_variables(Deployment(), _PORT, options.artifact_uri)
    environment = container_environment({}, {}, platform, variables)
    settings = read_settings(container_arguments(options.container_arguments, platform, variables), environment)
    if (opened := settings.value("vertex_ai_port")) != _PORT:
        raise BadOption.of("--vertex-ai-port", f"the platform calls {_PORT}, but the server opens {opened}")
    grpc_port = settings.value("grpc_port") if settings.value("allow_grpc") else 0
    if options.grpc_port not in (0, grpc_port):
        cure = f"the server opens {grpc_port}" if grpc_port else "the container needs the argument --allow-grpc=true"
        raise BadOption.of("--grpc-port", f"it is {options.grpc_port}, but {cure}")


_FIELDS = {
    "period": "period_seconds",
    "timeout": "timeout_seconds",
    "failures": "failure_threshold",
    "delay": "initial_delay_seconds",
}
_TAIL = re.compile(r",([a-z]+)=(\d{1,5})$")


def parse_probe(text: str, flag: str) -> Probe:
    """A probe of the container in one text: `KIND:WHAT[,period=S][,timeout=S][,failures=N][,delay=S]`.

    KIND is `http` (WHAT is a path), `tcp` (a port) or `exec` (a command, split as a shell does it). Raises BadOption.
    """
    what, numbers = text, {}
    while found := _TAIL.search(what):
        if found[1] not in _FIELDS:
            raise BadOption.of(flag, f"unknown setting '{found[1]}'; expected one of {', '.join(_FIELDS)}")
        numbers[_FIELDS[found[1]]] = int(found[2])
        what = what[: found.start()]
    kind, _, target = what.partition(":")
    if kind == "http" and target.startswith("/"):
        return Probe(http_get=Probe.HttpGetAction(path=target, port=_PORT), **numbers)
    if kind == "tcp" and target.isdecimal():
        return Probe(tcp_socket=Probe.TcpSocketAction(port=int(target)), **numbers)
    if kind == "exec" and target.strip():
        return Probe(exec_=Probe.ExecAction(command=shlex.split(target)), **numbers)
    raise BadOption.of(flag, f"it takes http:/PATH, tcp:PORT or exec:COMMAND, not '{what}'")
