"""`trident serve` under one of gunicorn's worker classes: python served_models.py WORKER_CLASS [options]."""

from __future__ import annotations

import dataclasses
import sys

from trident.app.commands.serve import server_configuration
from trident.app.settings.reading import read_settings
from trident.app.supervisor.server import serve
from trident.core.observability.log import configure_logging

if __name__ == "__main__":
    # A stock worker speaks no HTTP/2.
    settings = dataclasses.replace(read_settings(sys.argv[2:], {}), allow_grpc=False)
    configure_logging(settings.log_options)
    sys.exit(serve(dataclasses.replace(server_configuration(settings), worker_class=sys.argv[1])))
