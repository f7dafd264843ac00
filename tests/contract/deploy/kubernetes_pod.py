"""The container of a pod as a process of this machine, with its command and environment.

Its ports are mapped to free ones and its volumes to folders under one root. Everything else is as the manifest says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.contract.deploy.compose_stack import image_words
from tests.contract.deploy.kubernetes_manifests import Manifests
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess, environment_without

# KServe replaces `{{.Name}}` with it.
SERVICE = "digits"
_PLATFORMS = ("AIP_", "AWS_", "CLOUDSDK_", "GCE_", "GOOGLE_", "SAGEMAKER_", "STORAGE_", "TRIDENT_", "TRITON_")
_NO_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}


class KubernetesPod(ServerProcess):
    """A context manager, as every ServerProcess. `contents` maps paths of the container to folders of this machine.

    `variables` are those that the cluster or the cloud adds to the container's environment.
    """

    def __init__(self, manifests: Manifests, folder: Path, contents: Mapping[str, Path], **variables: str) -> None:
        settings = manifests.settings
        super().__init__(settings.model_repository[0], folder / "log")
        self._manifests = manifests
        self._ports = {
            settings.http_port: self.http_port,
            settings.grpc_port: self.grpc_port,
            settings.metrics_port: self.metrics_port,
        }
        self._root = folder / "root"
        self._folders = {*manifests.mounts, *contents}
        for path in manifests.mounts.keys() - contents.keys():
            mounted = self.path(path)
            mounted.mkdir(parents=True)
            mounted.chmod(0o2777)  # as Kubernetes makes an emptyDir
        for path, target in contents.items():
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.path(path).symlink_to(target)
        given = {name: self._mapped(text) for name, text in manifests.environment.items()}
        own = {"HOME": str(folder), "TRIDENT_HTTP_ADDRESS": HOST, "TRIDENT_GRPC_ADDRESS": HOST}
        self.environment = {**environment_without(*_PLATFORMS), **_NO_MACHINE, **own, **given, **variables}

    def path(self, path: str) -> Path:
        """The path on this machine of a path in the pod."""
        return self._root / path.lstrip("/")

    @property
    def command(self) -> list[str]:
        (program,) = image_words("ENTRYPOINT")
        installed = Path(super().command[0]).with_name(program)
        return [str(installed), *map(self._mapped, self._manifests.container["args"])]

    def _mapped(self, text: str) -> str:
        """A value, or an argument with a value, mapped to this machine."""
        text = text.replace("{{.Name}}", SERVICE)
        name, equals, value = text.rpartition("=") if text.startswith("--") else ("", "", text)
        if value.isdigit() and int(value) in self._ports and (not name or name.endswith("-port")):
            value = str(self._ports[int(value)])
        elif any(value == folder or value.startswith(f"{folder}/") for folder in self._folders):
            value = str(self.path(value))
        return f"{name}{equals}{value}"
