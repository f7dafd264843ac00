"""The services of deploy/compose as processes of this machine, with their commands, environment, folders and ports.

A container's own things are mapped: a port to a free one, a service's name to loopback, a folder to a copy under one
root. Everything else is as the file says.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import yaml

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import environment_without
from tests.contract.servers.session import kill_session, start_session
from tests.needed import program
from tests.project import ROOT
from tests.waiting import until

COMPOSE = ROOT / "deploy" / "compose"
SERVER_IMAGE = "trident:latest"
_STOP_LIMIT_S = 60.0
_CONFIG_LIMIT_S = 120
_PLATFORMS = ("AIP_", "AWS_", "CLOUDSDK_", "GCE_", "GOOGLE_", "SAGEMAKER_", "STORAGE_", "TRIDENT_", "TRITON_")
_NO_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}
_PUBLISHED = re.compile(r"([\d.]+):(\d+):(\d+)(?:/tcp)?")
PROFILES = ("local", "plain", "sagemaker", "sagemaker-mme", "vertex")


class Port(NamedTuple):
    address: str
    outside: int
    inside: int


class Mount(NamedTuple):
    source: Path
    target: str
    read_only: bool


def resolved(**variables: str) -> dict[str, Any]:
    """The services of all profiles as docker-compose resolves them with these variables."""
    profiles = [f"--profile={profile}" for profile in PROFILES]
    command = [program("docker-compose", "apt install docker-compose"), *profiles, "config"]
    environment = {**environment_without("TRIDENT_", "MODEL_"), **variables}
    finished = subprocess.run(
        command, cwd=COMPOSE, env=environment, capture_output=True, text=True, timeout=_CONFIG_LIMIT_S, check=False
    )
    assert finished.returncode == 0, finished.stderr
    services: dict[str, Any] = yaml.safe_load(finished.stdout)["services"]
    return services


def started_by_default(services: Mapping[str, Any]) -> set[str]:
    """The services that docker-compose starts without a profile on its command line."""
    words = dict(line.split("=") for line in (COMPOSE / ".env").read_text().splitlines() if not line.startswith("#"))
    chosen = set(words["COMPOSE_PROFILES"].split(","))
    return {name for name, service in services.items() if chosen & set(service.get("profiles", chosen))}


def ports_of(service: Mapping[str, Any]) -> list[Port]:
    """The ports of a service, in the form of docker-compose 1 (texts) or 2 (objects)."""
    found = []
    for each in service.get("ports", []):
        if isinstance(each, str):
            match = _PUBLISHED.fullmatch(each)
            assert match is not None, each
            found.append(Port(match[1], int(match[2]), int(match[3])))
        else:
            found.append(Port(each.get("host_ip", "0.0.0.0"), int(each["published"]), each["target"]))
    return found


def mounts_of(service: Mapping[str, Any]) -> list[Mount]:
    found = []
    for each in service.get("volumes", []):
        if isinstance(each, str):
            source, target, mode = each.split(":")
            found.append(Mount(Path(source), target, mode == "ro"))
        else:
            found.append(Mount(Path(each["source"]), each["target"], each.get("read_only", False)))
    return found


def image_words(instruction: str) -> list[str]:
    """The words of ENTRYPOINT or CMD of the server's image."""
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    words: list[str] = json.loads([line for line in lines if line.startswith(f"{instruction} [")][-1].split(" ", 1)[1])
    return words


class ComposeStack:
    """The services of one profile that this project builds. A context manager: they start in order on entry and end on
    exit."""

    def __init__(self, folder: Path, profile: str, **variables: str) -> None:
        self._folder = folder
        everything = resolved(**variables)
        # Services without a build are other programs.
        self.services = {
            name: service
            for name, service in everything.items()
            if "build" in service and profile in service["profiles"]
        }
        self._ports = _free_ports(everything)
        self._root = folder / "root"
        self._folders = {"/tmp"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, service: str, port: int) -> str:
        return f"{HOST}:{self._ports[service, port]}"

    def log_text(self, service: str) -> str:
        return (self._folder / f"{service}.log").read_text(errors="replace")[-4000:]

    def wait_for_end(self, service: str) -> None:
        """Wait for the end of a service. AssertionError if it does not end with status 0."""
        process = self._processes[service]
        until(lambda: process.poll() is not None, lambda: self.log_text(service))
        assert process.returncode == 0, self.log_text(service)

    def is_running(self, service: str) -> bool:
        return self._processes[service].poll() is None

    def __enter__(self) -> ComposeStack:
        self._mount()
        try:
            for name in self.services:
                self._start(name)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for name, service in self.services.items():
                    if service["image"] == SERVER_IMAGE:
                        self._processes[name].send_signal(signal.SIGTERM)
                        assert self._processes[name].wait(_STOP_LIMIT_S) == 0, self.log_text(name)
        finally:
            self._kill()

    def _start(self, name: str) -> None:
        """Start a service after its dependencies, some of which must have ended."""
        if name in self._processes:
            return
        service = self.services[name]
        for other, how in service.get("depends_on", {}).items():
            self._start(other)
            if how["condition"] == "service_completed_successfully":
                self.wait_for_end(other)
        self._processes[name] = start_session(
            self._command(name), self._folder / f"{name}.log", cwd=self._root / "tmp", env=self._environment(name)
        )

    def _mount(self) -> None:
        """Copy the mounted folders, which all services share."""
        (self._root / "tmp").mkdir(parents=True)
        for service in self.services.values():
            for mount in mounts_of(service):
                if mount.target not in self._folders:
                    _copy(mount.source, self._root / mount.target[1:])
                self._folders.add(mount.target)

    def _command(self, name: str) -> list[str]:
        service = self.services[name]
        if service["image"] == SERVER_IMAGE:
            words = [*image_words("ENTRYPOINT"), *service.get("command", image_words("CMD"))]
        else:
            words = service["command"]
        program, *arguments = [self._mapped(name, word) for word in words]
        binary = sys.executable if program == "python" else str(Path(sys.executable).with_name(program))
        return [binary, *arguments]

    def _environment(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment", {})
        mapped = {variable: self._mapped(name, text) for variable, text in given.items()}
        machine = {**environment_without(*_PLATFORMS), "HOME": str(self._root), **_NO_MACHINE}
        if self.services[name]["image"] != SERVER_IMAGE:
            return {**machine, **mapped}
        # Settings that a container does not need.
        http_port, metrics_port = free_ports(2)
        own = {
            "TRIDENT_HTTP_ADDRESS": HOST,
            "TRIDENT_HTTP_PORT": str(http_port),
            "TRIDENT_METRICS_PORT": str(metrics_port),
            "TRIDENT_SAGEMAKER_MODEL_ROOT": str(self._root / "opt" / "ml" / "model"),
            "TRIDENT_SAGEMAKER_MODELS_ROOT": str(self._root / "opt" / "ml" / "models"),
        }
        return {**machine, **own, **mapped}

    def _mapped(self, name: str, text: str) -> str:
        """A word of the command or a value, mapped to this machine."""
        services = "|".join(sorted({service for service, _ in self._ports}, key=len, reverse=True))
        own = "|".join(str(port) for service, port in self._ports if service == name) or "-"
        targets = "|".join(re.escape(folder) for folder in sorted(self._folders, key=len, reverse=True))
        pattern = re.compile(
            rf"(?P<service>\b(?:{services})):(?P<port>\d+)\b|(?<![\d.:])(?P<own>{own})(?![\d.])|0\.0\.0\.0"
            rf"|(?:(?<==)|^)(?P<folder>{targets})(?=/|$)"
        )

        def here(match: re.Match[str]) -> str:
            if match["service"]:
                return self.address(match["service"], int(match["port"]))
            if match["own"]:
                return str(self._ports[name, int(match["own"])])
            return f"{self._root}{match['folder']}" if match["folder"] else HOST

        return pattern.sub(here, text)

    def _kill(self) -> None:
        for process in self._processes.values():
            kill_session(process)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def _free_ports(everything: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """A free port for each published port, and for each that another service names."""
    texts = json.dumps([[each.get("command", []), each.get("environment", {})] for each in everything.values()])
    names = "|".join(sorted(everything, key=len, reverse=True))
    wanted = {(name, int(port)) for name, port in re.findall(rf"\b({names}):(\d+)\b", texts)}
    wanted |= {(name, port.inside) for name, each in everything.items() for port in ports_of(each)}
    return dict(zip(sorted(wanted), free_ports(len(wanted)), strict=True))
