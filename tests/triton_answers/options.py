"""Options of the command line: with which values a server starts, and which it refuses with status 1.

Triton is started with each. Trident's settings are read with them in this process; few are started.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import start_session
from tests.triton_answers import Answers
from tests.triton_answers.servers import TritonProcess
from tests.waiting import until
from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings

OPTIONS = ("--model-control-mode=explicit",)
STARTS = "starts"
REFUSES = 1
OTHERWISE: dict[str, tuple[str, Any]] = {
    "options: model-load-thread-count=1.4": ("a number, and nothing else", 1),
    "options: model-load-thread-count=5x": ("a number, and nothing else", 1),
    "options: model-load-thread-count= 5": ("a number, and nothing else", 1),
    "options: model-load-thread-count=5 ": ("a number, and nothing else", 1),
    "options: model-load-thread-count=0x10": ("a number, and nothing else", 1),
    "options: model-load-thread-count=1e3": ("a number, and nothing else", 1),
    "options: http-header-forward-pattern=(": ("RE2's syntax is checked", 1),
    "options: http-header-forward-pattern=(?=a)": ("RE2's syntax is checked", 1),
    "options: grpc-port=70000": ("a port has 16 bits", 1),
    "options: grpc-header-forward-pattern=(": ("RE2's syntax is checked", 1),
    "options: log-verbose=-1": ("nothing is ignored", 1),
    "options: log-format=iso8601": ("in any case", "starts"),
    "options: metrics-port=70000": ("a port has 16 bits", 1),
    "options: metrics-interval-ms=0.5": ("an interval is 1 ms or longer", 1),
    "options: rate-limit-resource=:1": ("nothing is ignored", 1),
    "options: rate-limit-resource=R:-1": ("nothing is ignored", 1),
    "options: backend-config=default-max-batch-size=x": ("nothing is ignored", 1),
    "options: level without a file": ("nothing could be traced", 1),
    "options: rate 0": ("nothing could be traced", 1),
    "options: help": ("help that was asked for is no failure", 0),
}

BOOLEANS = ("true", "false", "TRUE", "Off", "on", "0", "1", "", "x", "yes", "2", " true", "t")
INTEGERS = ("1", "0", "", "x", "1.4", "5x", " 5", "5 ", "+5", "0x10", "1e3", "2147483648", "99999999999")
FEW_BOOLEANS = ("true", "false", "x")
FEW_INTEGERS = ("3", "0", "-1", "x", "2147483648")
VALUES: dict[str, Sequence[str]] = {
    "strict-readiness": BOOLEANS,
    "model-load-thread-count": INTEGERS,
    "id": ("x", ""),
    "exit-timeout-secs": FEW_INTEGERS,
    "exit-on-error": FEW_BOOLEANS,
    "strict-model-config": FEW_BOOLEANS,
    "model-control-mode": ("none", "poll", "explicit", "EXPLICIT", "x", ""),
    "repository-poll-secs": FEW_INTEGERS,
    "load-model": ("*",),
    "model-config-name": ("x", "", "a b"),
    "model-load-retry-count": FEW_INTEGERS,
    "model-namespacing": FEW_BOOLEANS,
    "enable-peer-access": FEW_BOOLEANS,
    "allow-http": ("true", "x"),
    "http-address": ("127.0.0.1",),
    "http-port": ("x",),
    "reuse-http-port": FEW_BOOLEANS,
    "http-header-forward-pattern": ("a.*", "", "(", "(?=a)"),
    "http-thread-count": ("3", "x"),
    "http-restricted-api": (
        *(
            "trace:a=b",
            "trace,metadata:a=b",
            "trace:a=b=c",
            "x:a=b",
            "trace",
            "trace:a",
            ":a=b",
            "trace:=b",
            "trace:a=",
        ),
        *("trace,trace:a=b", ""),
    ),
    "allow-grpc": FEW_BOOLEANS,
    "grpc-address": ("127.0.0.1",),
    "grpc-port": ("x", "-1", "70000"),
    "reuse-grpc-port": FEW_BOOLEANS,
    "grpc-header-forward-pattern": ("a.*", "", "("),
    "grpc-infer-allocation-pool-size": ("3", "0", "x"),
    "grpc-use-ssl": ("false", "x", "true"),
    "grpc-use-ssl-mutual": ("x",),
    "grpc-server-cert": ("none",),
    "grpc-infer-response-compression-level": ("none", "low", "MEDIUM", "high", "x", ""),
    "grpc-keepalive-time": ("3000", "x"),
    "grpc-keepalive-timeout": ("3000", "x"),
    "grpc-keepalive-permit-without-calls": FEW_BOOLEANS,
    "grpc-http2-max-pings-without-data": ("3", "0", "x"),
    "grpc-http2-min-recv-ping-interval-without-data": ("3", "0", "x"),
    "grpc-http2-max-ping-strikes": ("3", "0", "x"),
    "grpc-max-connection-age": ("3000", "0", "x"),
    "grpc-max-connection-age-grace": ("3000", "0", "x"),
    "grpc-restricted-protocol": ("health:a=b", "x:a=b", "health", "health:a", "health:a="),
    "log-verbose": ("0", "1", "true", "false", "True", "-1", "x", "on"),
    "log-info": FEW_BOOLEANS,
    "log-warning": FEW_BOOLEANS,
    "log-error": FEW_BOOLEANS,
    "log-format": ("default", "ISO8601", "iso8601", "x"),
    "log-file": ("", "/none/x"),
    "allow-metrics": FEW_BOOLEANS,
    "allow-gpu-metrics": FEW_BOOLEANS,
    "allow-cpu-metrics": FEW_BOOLEANS,
    "metrics-address": ("127.0.0.1", "x.invalid"),
    "metrics-port": ("x", "70000"),
    "metrics-interval-ms": ("500", "0.5", "x"),
    "metrics-config": (
        "counter_latencies=false",
        "histogram_latencies=true",
        "summary_quantiles=0.5:0.1",
        "a",
        "a=",
        "=b",
        "a,b=c",
        "",
    ),
    "trace-config": (
        "level=OFF",
        "level=x",
        "rate=5",
        "rate=x",
        "count=3",
        "count=x",
        "mode=triton",
        "mode=x",
        "triton,file=x",
        "triton,log-frequency=2",
        "triton,log-frequency=x",
        "x,file=y",
        "level",
        "=x",
        ",a=b",
        "rate=",
        "",
    ),
    "cache-config": (
        "local,size=1000000",
        "local,size=x",
        "local,size=",
        "local",
        "size=1",
        "",
        ",size=1",
        "x,y=z",
        "local,x=1",
        "local,size=0",
        "local,size=-1",
    ),
    "response-cache-byte-size": ("1000000", "x"),
    "cache-directory": ("none",),
    "rate-limit": ("off", "execution_count", "OFF", "x", ""),
    "rate-limit-resource": ("R:1", "R:1:0", "R", "R:x", "R:1:x", "R:1:0:2", ":1", "", "R:", "R:-1"),
    "pinned-memory-pool-byte-size": ("0", "1048576", "x", "99999999999999999999"),
    "cuda-memory-pool-byte-size": ("0:1000", "0", "x:1", "0:x", "", ":"),
    "cuda-virtual-address-size": ("0:1000", "0", "x:1"),
    "min-supported-compute-capability": ("7.5", "x", "6"),
    "buffer-manager-thread-count": ("0", "2", "x"),
    "host-policy": ("p,numa-node=0", "p,cpu-cores=0-1", "p", "p,x=1", "p,numa-node=x", ",numa-node=0", "p,numa-node="),
    "model-load-gpu-limit": ("0:0.5", "0", "x:0.5", "0:x", "-1:0.5", "0:-0.4", "0:1.5"),
    "repoagent-directory": ("none",),
    "backend-directory": ("none",),
    "backend-config": (
        "default-max-batch-size=2",
        "onnxruntime,default-max-batch-size=2",
        "python,shm-default-byte-size=1048576",
        "x,y=z",
        "x",
        "x,y",
        ",a=b",
        "=b",
        "a=",
        "default-max-batch-size=x",
        "",
    ),
    "disable-auto-complete-config": ("true",),
}
# Those that follow an option without a value or a name, and combinations.
LINES: dict[str, Sequence[str]] = {
    "nothing more": (),
    "word": ("word",),
    "unknown": ("--none",),
    "unknown value": ("--none=1",),
    "short": ("-x",),
    "dashes": ("--",),
    "dashes and a word": ("--", "word"),
    "empty word": ("",),
    "two words": ("--strict-readiness", "true"),
    "no value": ("--strict-readiness",),
    "no value, integer": ("--model-load-thread-count",),
    "negative in two words": ("--model-load-retry-count", "-1"),
    "switch": ("--disable-auto-complete-config",),
    "switch, empty": ("--disable-auto-complete-config=",),
    "prefix": ("--strict-r=true",),
    "prefix of several": ("--log-=1",),
    "prefix of two": ("--strict=true",),
    "upper case": ("--STRICT-READINESS=true",),
    "underscores": ("--strict_readiness=true",),
    "twice": ("--strict-readiness=true", "--strict-readiness=false"),
    "twice, wrong first": ("--strict-readiness=x", "--strict-readiness=false"),
    "both caches": ("--cache-config=local,size=1000000", "--response-cache-byte-size=1000000"),
    "two caches": ("--cache-config=local,size=1000000", "--cache-config=x,size=1000000"),
    "cache twice": ("--cache-config=local,size=1000000", "--cache-config=local,size=2000000"),
    "load all": ("--load-model=*", "--load-model=*"),
    "load all and one": ("--load-model=*", "--load-model=none"),
    "load without explicit": ("--model-control-mode=none", "--load-model=none"),
    "load in poll": ("--model-control-mode=poll", "--load-model=none"),
    "level without a file": ("--trace-config=level=TIMESTAMPS",),
    "rate 0": ("--trace-config=level=TIMESTAMPS", "--trace-config=triton,file=x", "--trace-config=rate=0"),
    "older trace": ("--trace-level=OFF", "--trace-rate=5", "--trace-count=3", "--trace-log-frequency=0"),
    "older level": ("--trace-level=x",),
    "both restricted": ("--http-restricted-api=trace:a=b", "--http-restricted-api=trace:c=d"),
    "two restricted": ("--http-restricted-api=metadata:a=b", "--http-restricted-api=trace:c=d"),
    "strict and not": ("--disable-auto-complete-config", "--strict-model-config=false"),
    "two repositories": ("--model-repository=MODELS", "--model-store=MODELS"),
    "store": ("--model-store=MODELS",),
    "help": ("--help",),
}
# Nothing but a start shows them.
REAL = ("help",)


def write_models(folder: Path) -> None:
    """No models."""


def lines() -> dict[str, Sequence[str]]:
    return {f"{name}={value}": (f"--{name}={value}",) for name, values in VALUES.items() for value in values} | LINES


class Start(ServerProcess):
    """The command of a server with other ports."""

    def __init__(self, server: ServerProcess, log: Path, *options: str) -> None:
        super().__init__(server.repository, log, "--model-control-mode=explicit", *options)
        self.kind = type(server)

    @property
    def command(self) -> list[str]:
        words = self.kind.command.fget(self)  # type: ignore[attr-defined]
        return [word.replace("MODELS", self.location) for word in words]


def outcome(server: ServerProcess, *options: str) -> Any:
    with TemporaryDirectory() as folder:
        start = Start(server, Path(folder, "log"), *options)
        process = start.process = start_session(start.command, start.log, cwd=Path(folder), env=None)
        try:
            until(lambda: process.poll() is not None or start._is_ready(), start.log_text)
            return STARTS if process.poll() is None else process.returncode
        finally:
            start.kill()


def read(server: ServerProcess, *options: str) -> Any:
    repository = f"--model-repository={server.location}"
    http, metrics, grpc = free_ports(3)
    ports = (f"--http-port={http}", f"--metrics-port={metrics}", f"--grpc-port={grpc}")
    words = [word.replace("MODELS", server.location) for word in options]
    try:
        read_settings([repository, *ports, "--model-control-mode=explicit", *words], {})
    except BadOption:
        return REFUSES
    return STARTS


def ask_options(server: ServerProcess) -> Answers:
    if isinstance(server, TritonProcess):
        return {name: outcome(server, *options) for name, options in lines().items()}
    return {name: (outcome if name in REAL else read)(server, *options) for name, options in lines().items()}
