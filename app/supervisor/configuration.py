"""What the supervisor is told about the server that it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trident.app.supervisor.engine_child import EngineChild
from trident.app.supervisor.start import FailureNote
from trident.app.worker.listening_sockets import Bind

if TYPE_CHECKING:
    from trident.app.sites.engine_start import EngineStart
    from trident.app.sites.site import Site
    from trident.app.worker.worker import TridentWorker


WORKER_CLASS = "trident.app.supervisor.arbiter.WorkerProcess"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfiguration:
    """`addresses` are the sockets to listen on; `last_ports` close after all others.

    `begin` is called in a worker, after the fork, before it imports what serves; a stock worker class does not call it.
    `make_site` is called there later, with the worker, or with None under a stock worker class, and with what `begin`
    has returned. Times
    are seconds: `drain_grace_s` of unready service before the listeners close, then `exit_timeout_s` for the requests
    in flight; `request_timeout_s` and `keepalive_s` as in `ConnectionLimits`. `engines` are the processes behind the
    workers; empty if their sites contain the engine. `shared_modules` are imported before the workers are forked. A
    process that cannot serve writes the reason into `failure_note`.
    """

    addresses: tuple[Bind, ...]
    make_site: Callable[[TridentWorker | None, EngineStart | None], Site]
    begin: Callable[[], EngineStart | None] = lambda: None
    last_ports: frozenset[int] = frozenset()
    drain_grace_s: float = 0.0
    exit_timeout_s: float = 30.0
    request_timeout_s: float = 60.0
    keepalive_s: float = 600.0
    max_body_size: int = 2**31 - 1
    worker_class: str = WORKER_CLASS
    stock_threads: int = 16
    workers: int = 1
    shared_modules: tuple[str, ...] = ()
    engines: tuple[EngineChild, ...] = ()
    failure_note: FailureNote = field(default_factory=FailureNote)
