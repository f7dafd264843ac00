"""A real Prometheus that scrapes the servers of a test."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.contract.servers.ports import HOST, free_ports
from tests.needed import program
from tests.project import ROOT
from tests.waiting import until

MONITORING = ROOT / "deploy" / "monitoring"
LIMIT_S = 120.0
_STOP_LIMIT_S = 30.0


def with_targets(config: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with `addresses`, by the names of its targets, instead of a name server."""
    jobs = []
    for job in config["scrape_configs"]:
        named = [name for found in job["dns_sd_configs"] for name in found["names"] if name in addresses]
        fixed = [{"targets": [addresses[name]], "labels": {"__meta_dns_name": name}} for name in named]
        jobs.append({**{key: job[key] for key in job if key != "dns_sd_configs"}, "static_configs": fixed})
    return {**config, "scrape_configs": jobs}


def shipped_config(addresses: Mapping[str, str], interval: str = "1s") -> dict[str, Any]:
    """deploy/monitoring/prometheus.yml for these servers, with a short scrape interval."""
    config = with_targets(yaml.safe_load((MONITORING / "prometheus.yml").read_text()), addresses)
    config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(MONITORING / name) for name in config["rule_files"]]
    return config


def finite(result: Sequence[Mapping[str, Any]]) -> list[float]:
    """The values of an answer that are finite numbers."""
    return [value for value in (float(series["value"][1]) for series in result) if math.isfinite(value)]


class Prometheus:
    """A context manager: ready on entry, ended on exit. `options` override the default ones."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._binary = program("prometheus", "apt install prometheus")
        (self.port,) = free_ports(1)
        self._log = folder / "prometheus.log"
        self._config = folder / "prometheus.json"
        self._storage = folder / "prometheus"
        self._config.write_text(json.dumps(config))  # YAML, too

    def __enter__(self) -> Prometheus:
        command = [
            self._binary,
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._storage}",
            f"--web.listen-address={HOST}:{self.port}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of a query. AssertionError with the text of Prometheus if the query is wrong."""
        status, answer = self._get(f"/api/v1/query?{urlencode({'query': expression})}")
        document = json.loads(answer)
        assert status == 200, f"{expression}: {document.get('error')}"
        assert document["data"]["resultType"] == "vector", expression
        found: list[dict[str, Any]] = document["data"]["result"]
        return found

    def wait_for(self, expression: str, is_enough: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        """Repeat a query until its answer is enough. AssertionError with the last answer after LIMIT_S."""
        answers: list[list[dict[str, Any]]] = []

        def holds() -> object:
            answers[:] = [self.query(expression)]
            return is_enough(answers[0])

        until(holds, lambda: f"no answer to {expression}: {answers}", limit_s=LIMIT_S)
        return answers[0]

    def _wait_until_ready(self) -> None:
        until(lambda: self._is_ready() or self._process.poll() is not None, self._log_text, limit_s=LIMIT_S)
        assert self._process.poll() is None, self._log_text()

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._get("/-/ready")[0] == 200
        return False

    def _log_text(self) -> str:
        return self._log.read_text()[-4000:]

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
