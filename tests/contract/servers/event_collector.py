"""A collector of CloudEvents on the loopback, as a service behind KServe's logger is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.contract.servers.collector import Collector


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """`attributes` are those of the headers, without `ce-`."""

    attributes: dict[str, str]
    content_type: str
    data: Any


class EventCollector(Collector):
    path = "/events"
    protocol = "HTTP/1.1"

    def __init__(self, *, hold: bool = False) -> None:
        super().__init__(hold=hold)
        self.events: list[ReceivedEvent] = []

    def take(self, headers: Mapping[str, str], body: bytes) -> None:
        attributes = {name[3:]: value for name, value in headers.items() if name.startswith("ce-")}
        self.events.append(ReceivedEvent(attributes, headers["content-type"], json.loads(body)))
