"""deploy/kubernetes as kubectl builds it, and the settings of its pods."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.needed import missing, program
from tests.project import ROOT
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings

KUBERNETES = ROOT / "deploy" / "kubernetes"
SERVERS = ("base", "gpu", "volume")
PARTS = ("aws", "gcp", "hpa", "inference-pool", "keda", "keda-p99", "keda-queue", "monitoring", "namespace")
OVERLAYS = tuple(sorted(path.name for path in (KUBERNETES / "overlays").iterdir()))
# An old version, a common one, and the latest with schemas.
KUBERNETES_VERSIONS = ("1.31", "1.34", kubernetes_validate.latest_version())
_LIMIT_S = 60
_UNITS = {"": 1, "Mi": 1 << 20, "Gi": 1 << 30}

Object = dict[str, Any]


def kustomized(folder: Path) -> list[Object]:
    """The objects of a kustomization. Without kubectl the test is skipped (tests/needed.py)."""
    kubectl = program("kubectl", "see kubernetes.io/docs/tasks/tools: Debian 12 has a version that is too old")
    command = [kubectl, "kustomize", str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert finished.returncode == 0, finished.stderr
    return [each for each in yaml.safe_load_all(finished.stdout) if each]


@functools.cache
def manifests(folder: str) -> Manifests:
    """The manifests of a folder in deploy/kubernetes; built once."""
    return Manifests(kustomized(KUBERNETES / folder))


def copied_tree(folder: Path) -> Path:
    """A copy of deploy/kubernetes that a test may change."""
    return shutil.copytree(KUBERNETES, folder / "kubernetes")


CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule", "ClusterServingRuntime", "InferencePool"}


def validate(*objects: Object) -> None:
    """Raises kubernetes_validate.ValidationError if the API would refuse one of its own objects or drop a field."""
    for each in objects:
        for version in KUBERNETES_VERSIONS if each["kind"] not in CUSTOM else ():
            kubernetes_validate.validate(each, version, strict=True)


_CUSTOM = {
    "gateway.networking.k8s.io": "gateway-api",
    "keda.sh": "keda",
    "monitoring.coreos.com": "prometheus-operator",
}
# The packages have a class for each kind, with the schema of its definition. One line for each object that it refuses.
_CHECK = """
import { readFileSync } from "node:fs";
for (const [path, object] of JSON.parse(readFileSync(0))) {
  const kinds = await import(path);
  try { new kinds[object.kind](object).validate(); }
  catch (error) { console.log(object.kind, object.metadata.name, error.message); }
}
"""


def refused(objects: list[Object]) -> list[str]:
    """Return violations of the schemas of the Gateway API, KEDA and the Prometheus operator; they take unknown fields.

    Skips without the schemas: npm packages @kubernetes-models/NAME, in the folder that KUBERNETES_MODELS names.
    """
    folder = os.environ.get("KUBERNETES_MODELS", "")
    packages = Path(folder, "node_modules", "@kubernetes-models")
    if not folder or not all((packages / name).is_dir() for name in _CUSTOM.values()):
        missing("KUBERNETES_MODELS names no folder with the npm packages @kubernetes-models")
    asked = []
    for each in objects:
        group, _, version = each["apiVersion"].partition("/")
        asked.append((str(packages / _CUSTOM[group] / group / version / "index.js"), each))
    command = [program("node", "apt install nodejs"), "--input-type=module", "--eval", _CHECK]
    finished = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=_LIMIT_S)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


# The classes of KServe's SDK are generated from its definitions. They are imported without the package around them,
# which needs FastAPI, pandas and gRPC. Fields whose classes are Kubernetes' are not looked into.
_KSERVE_CHECK = r"""
import json, re, sys, types
package = sys.modules["kserve"] = types.ModuleType("kserve")
package.__path__ = [sys.argv[1]]
import kserve.models
def made(kind, value, path):
    if repeated := re.fullmatch(r"list\[(.*)\]", kind):
        return [made(repeated[1], each, f"{path}[{number}]") for number, each in enumerate(value)]
    fields = getattr(kserve.models, kind, None)
    if fields is None:
        return value
    names = {key: name for name, key in fields.attribute_map.items()}
    for key in sorted(value.keys() - names.keys()):
        print(f"{path} has no field {key}")
    known = {names[key]: made(fields.openapi_types[names[key]], each, f"{path}.{key}")
             for key, each in value.items() if key in names}
    try:
        return fields(**known)
    except ValueError as error:
        print(path, error)
for each in json.load(sys.stdin):
    version = each["apiVersion"].partition("/")[2].capitalize()
    made(version + each["kind"], each, each["metadata"]["name"])
"""


def refused_by_kserve(objects: list[Object]) -> list[str]:
    """Return the errors of KServe's SDK about its own objects: unknown and missing fields.

    Skips without the SDK: `pip install --no-deps --target FOLDER kserve six`, in the folder that KSERVE_SDK names.
    """
    folder = os.environ.get("KSERVE_SDK", "")
    if not Path(folder, "kserve").is_dir():
        missing("KSERVE_SDK names no folder with the package kserve")
    command = [sys.executable, "-c", _KSERVE_CHECK, str(Path(folder, "kserve"))]
    environment = {**os.environ, "PYTHONPATH": folder}
    finished = subprocess.run(
        command, input=json.dumps(objects), capture_output=True, text=True, env=environment, timeout=_LIMIT_S
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def size_of(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", quantity)
    assert match is not None, quantity
    return int(match[1]) * _UNITS[match[2]]


class Manifests:
    """The objects of a kustomization, with one server: that of a Deployment or of a KServe runtime."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    def of(self, *kinds: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] in kinds]

    def one(self, kind: str) -> Object:
        (found,) = self.of(kind)
        return found

    @property
    def template(self) -> Object:
        """Labels, annotations and `spec` of a pod."""
        template: Object = self.one("Deployment")["spec"]["template"]
        return template

    @property
    def pod(self) -> Object:
        """The pod's specification, whose fields a runtime has under the same names."""
        runtimes = self.of("ClusterServingRuntime")
        pod: Object = (runtimes[0] if runtimes else self.template)["spec"]
        return pod

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def environment(self) -> dict[str, str]:
        """The container's environment from its ConfigMaps. KeyError if one is missing."""
        maps = {each["metadata"]["name"]: each["data"] for each in self.of("ConfigMap")}
        found: dict[str, str] = {}
        for source in self.container.get("envFrom", []):
            if "configMapRef" in source:
                found |= maps[source["configMapRef"]["name"]]
        return found | {each["name"]: each["value"] for each in self.container.get("env", [])}

    @property
    def settings(self) -> ServerSettings:
        """The server's settings from arguments and environment. Raises BadOption for an unknown one."""
        command, *arguments = self.container["args"]
        assert command == "serve"
        return read_settings(arguments, self.environment)

    @property
    def ports(self) -> dict[str, int]:
        """The container's ports by name; "" without a name. KServe and Knative take 8080 where there are none."""
        ports = self.container.get("ports", [{"containerPort": 8080}])
        return {each.get("name", ""): each["containerPort"] for each in ports}

    def port(self, name_or_number: str | int) -> int:
        return self.ports[name_or_number] if isinstance(name_or_number, str) else name_or_number

    @property
    def probes(self) -> dict[str, Mapping[str, Any]]:
        return {name: probe for name, probe in self.container.items() if name.endswith("Probe")}

    @property
    def mounts(self) -> dict[str, Object]:
        volumes = {each["name"]: each for each in self.pod["volumes"]}
        return {each["mountPath"]: volumes[each["name"]] for each in self.container["volumeMounts"]}
