"""The container that the platform runs: image, arguments and variables, checked by the server's own settings.

Source: docs/spec/vertex.md sections A1 and A2.
"""

from __future__ import annotations

import difflib
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

from google.cloud.aiplatform_v1 import EnvVar, ModelContainerSpec, Port
from google.protobuf.duration_pb2 import Duration

from app.emulators.vertex.container import (
    RESERVED_PREFIX,
    container_arguments,
    container_environment,
    platform_variables,
)
from app.emulators.vertex.limits import Deployment
from app.settings.option import PREFIX, BadOption
from app.settings.reading import read_settings
from app.settings.server import SERVER_OPTIONS, ServerSettings
from deploy.vertex.labels import pairs
from deploy.vertex.probe import parse_probe

_LONGEST_DEPLOYMENT_S = 7200
_EVERY_PATH = "/*"
_DEFAULT_PORT = 8080
# The similarity of two names that differ by a misspelling; equal names have 1.
_LIKE = 0.9
_PROBES = ("startup", "health", "liveness")


def add_container_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--image", required=True, metavar="URI", help="image in Artifact Registry, in the same location"
    )
    parser.add_argument("--artifact-uri", default="", metavar="GS_URI", help="the folder of one or several models")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the container")
    parser.add_argument(
        "--port", type=int, default=_DEFAULT_PORT, metavar="N", help="port of the container; default: 8080"
    )
    parser.add_argument(
        "--predict-route", default="", metavar="PATH", help="default: a route with the ids of the endpoint"
    )
    parser.add_argument("--health-route", default="", metavar="PATH", help="as --predict-route, for health")
    parser.add_argument(
        "--invoke-route-prefix", default="", metavar="/*", help="open every path instead of the predict route"
    )
    parser.add_argument("--shared-memory-mb", type=int, default=0, metavar="N", help="size of /dev/shm")
    parser.add_argument(
        "--deployment-timeout", type=int, default=0, metavar="S", help="seconds until the container must be ready"
    )
    for name in _PROBES:
        parser.add_argument(f"--{name}-probe", default="", metavar="PROBE", help="http:/PATH, tcp:PORT or exec:COMMAND")


def container_spec(options: Namespace) -> ModelContainerSpec:
    """The container of a model. Raises BadOption, also for settings that the server would refuse."""
    variables = pairs(options.env, "--env")
    _check_container(options)
    _check_server(options, variables)
    probes = {
        f"{name}_probe": parse_probe(text, f"--{name}-probe", options.port)
        for name in _PROBES
        if (text := getattr(options, f"{name}_probe"))
    }
    return ModelContainerSpec(
        image_uri=options.image,
        args=options.container_arguments,
        env=[EnvVar(name=name, value=value) for name, value in variables.items()],
        ports=[Port(container_port=options.port)],
        predict_route=options.predict_route,
        health_route=options.health_route,
        invoke_route_prefix=options.invoke_route_prefix,
        shared_memory_size_mb=options.shared_memory_mb,
        deployment_timeout=Duration(seconds=options.deployment_timeout) if options.deployment_timeout else None,
        **probes,
    )


def _check_container(options: Namespace) -> None:
    if options.artifact_uri and not options.artifact_uri.startswith("gs://"):
        raise BadOption.of("--artifact-uri", f"it takes the gs:// address of a folder, not '{options.artifact_uri}'")
    if not 0 < options.port < 65536:
        raise BadOption.of("--port", f"{options.port} is not a port")
    if not 0 <= options.deployment_timeout <= _LONGEST_DEPLOYMENT_S:
        raise BadOption.of("--deployment-timeout", f"the platform waits at most {_LONGEST_DEPLOYMENT_S} s")
    prefix = options.invoke_route_prefix
    if prefix and prefix != _EVERY_PATH:
        raise BadOption.of("--invoke-route-prefix", f"the platform accepts only {_EVERY_PATH}, not '{prefix}'")
    if prefix and options.predict_route:
        raise BadOption.of("--invoke-route-prefix", "a model has a predict route or an invoke route prefix, not both")


def _check_server(options: Namespace, variables: Mapping[str, str]) -> None:
    _check_names(variables)
    settings = server_settings(
        options.container_arguments,
        variables,
        port=options.port,
        predict_route=options.predict_route,
        health_route=options.health_route,
        storage_uri=options.artifact_uri,
    )
    if settings.vertex_ai_port != options.port:
        raise BadOption.of("--port", f"it is {options.port}, but the server opens {settings.vertex_ai_port}")


def _check_names(variables: Mapping[str, str]) -> None:
    """Check for misspelled prefixes; the server's settings check only variables with its prefix."""
    known = [variable for each in SERVER_OPTIONS.values() for variable in each.variables]
    for name in variables:
        if name.startswith(RESERVED_PREFIX):
            raise BadOption.of("--env", f"the platform reserves names that begin with {RESERVED_PREFIX}: '{name}'")
        meant = difflib.get_close_matches(name, known, n=1, cutoff=_LIKE)
        if meant and meant[0] != name and not name.startswith(PREFIX):
            raise BadOption.of("--env", f"the server does not know '{name}'; did you mean {meant[0]}?")


def server_settings(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    port: int = _DEFAULT_PORT,
    predict_route: str = "",
    health_route: str = "",
    storage_uri: str = "",
) -> ServerSettings:
    """The settings of the server in a container with these arguments and variables. Raises BadOption."""
    platform = platform_variables(Deployment(predict_route=predict_route, health_route=health_route), port, storage_uri)
    environment = container_environment({}, {}, platform, variables)
    return read_settings(container_arguments(arguments, platform, variables), environment)
