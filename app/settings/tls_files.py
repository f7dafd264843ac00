"""The files that the settings name for the TLS of a port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.settings.option import BadOption
from app.settings.server import SERVER_OPTIONS, ServerSettings

if TYPE_CHECKING:
    from app.worker.tls import TlsFiles

# The beginnings of the options of the ports that may have TLS.
PORTS = ("http", "grpc")
NAMES = ("server_cert", "server_key", "root_cert")


def tls_files(settings: ServerSettings, port: str) -> TlsFiles | None:
    """The files of one of the PORTS, None if its clients talk in plain text. Raises BadOption if one is not named."""
    is_mutual = getattr(settings, f"{port}_use_ssl_mutual")
    if not is_mutual and not getattr(settings, f"{port}_use_ssl"):
        return None
    from app.worker.tls import TlsFiles

    names = NAMES if is_mutual else NAMES[:-1]
    for name in names:
        if not getattr(settings, f"{port}_{name}"):
            switch = f"--{port}-use-ssl-mutual" if is_mutual else f"--{port}-use-ssl"
            raise BadOption.of(f"--{SERVER_OPTIONS[f'{port}_{name}'].flag}", f"{switch} needs this file")
    return TlsFiles(*[getattr(settings, f"{port}_{name}") for name in names])
