"""Azurite, Microsoft's emulator of Azure Blob Storage, in its own process. npm has it, and no other package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from types import TracebackType

import pytest
from azure.core.exceptions import AzureError
from azure.storage.blob import BlobServiceClient

from tests.contract.servers.ports import HOST, free_ports
from tests.waiting import until

ACCOUNT = "testaccount"
KEY = "dGVzdC1rZXk="
_STOP_LIMIT_S = 45.0


def azurite_program() -> str:
    """The path of the program. Without it the test is skipped, also in the CI, which may have no npm."""
    return shutil.which("azurite-blob") or pytest.skip("Azurite is not installed: npm install --global azurite")


class Azurite:
    """A context manager: empty and ready on entry, ended on exit. It keeps blobs in memory.

    A client finds it with AZURE_STORAGE_CONNECTION_STRING=`connection_string`.
    """

    def __init__(self) -> None:
        self._port = free_ports(1)[0]

    @property
    def connection_string(self) -> str:
        endpoint = f"http://{HOST}:{self._port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"

    def __enter__(self) -> Azurite:
        program = azurite_program()
        self._folder = tempfile.TemporaryDirectory()
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        self._process = subprocess.Popen(
            [program, f"--blobHost={HOST}", f"--blobPort={self._port}", *options],
            cwd=self._folder.name,
            env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.client = BlobServiceClient.from_connection_string(self.connection_string, retry_total=0)
        try:
            until(lambda: self._answers() or self._process.poll() is not None, "Azurite does not answer")
            assert self._process.poll() is None, f"Azurite ended with status {self._process.returncode}"
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def put(self, container: str, name: str, content: bytes) -> None:
        """A blob, in the place of one of that name if there is one; the container is made where it is missing."""
        made = self.client.get_container_client(container)
        if not made.exists():
            made.create_container()
        made.upload_blob(name, content, overwrite=True)

    def _answers(self) -> bool:
        try:
            self.client.get_service_properties()
        except AzureError:
            return False
        return True

    def _stop(self) -> None:
        self.client.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
