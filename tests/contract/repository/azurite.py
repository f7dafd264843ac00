"""Azurite, Microsoft's emulator of Azure Blob Storage. npm has it, and no other package."""

from __future__ import annotations

import os

from azure.core.exceptions import AzureError
from azure.storage.blob import BlobServiceClient

from tests.contract.repository.emulator_process import EmulatorProcess
from tests.contract.servers.ports import HOST
from tests.needed import program

ACCOUNT = "testaccount"
KEY = "dGVzdC1rZXk="


def azurite_program() -> str:
    return program("azurite-blob", "npm install --global azurite")


def connection_to(endpoint: str) -> str:
    """The connection string for Azurite at `endpoint`, which may be that of a proxy before it."""
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint}/{ACCOUNT};"


class Azurite(EmulatorProcess):
    """A client finds it with AZURE_STORAGE_CONNECTION_STRING=`connection_string`."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": os.environ["PATH"]}
        self.client = BlobServiceClient.from_connection_string(self.connection_string, retry_total=0)

    @property
    def connection_string(self) -> str:
        return connection_to(self.endpoint)

    def command(self) -> list[str]:
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        return [azurite_program(), f"--blobHost={HOST}", f"--blobPort={self.port}", *options]

    def answers(self) -> bool:
        try:
            self.client.get_service_properties()
        except AzureError:
            return False
        return True

    def put(self, container: str, name: str, content: bytes) -> None:
        """A blob, in the place of one of that name if there is one; the container is made where it is missing."""
        made = self.client.get_container_client(container)
        if not made.exists():
            made.create_container()
        made.upload_blob(name, content, overwrite=True)

    def delete(self, container: str, name: str) -> None:
        self.client.get_blob_client(container, name).delete_blob()

    def _stop(self) -> None:
        self.client.close()
        super()._stop()
