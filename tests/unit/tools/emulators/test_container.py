"""Shared parts of the emulators: the client of the container, its environment and files, and the report."""

from __future__ import annotations

import io
import socket
import threading

import pytest

from tests.unit.tools.emulators.scripted_container import HOST, LIMIT_S, Answer, ScriptedContainer
from trident.tools.emulators.container import BreachReport, ContainerClient, ContainerFault, inherited_environment
from trident.tools.emulators.sagemaker.endpoint import SageMakerLimits

LIMITS = SageMakerLimits(body_bytes=100_000)


def fault(client: ContainerClient, **more: float) -> ContainerFault:
    with pytest.raises(ContainerFault) as found:
        client.ask("POST", "/invocations", body=b"x", **{"within_s": LIMIT_S, **more})
    return found.value


def test_a_slow_body_is_late() -> None:
    with socket.create_server((HOST, 0)) as listener:
        client = ContainerClient(listener.getsockname()[1], LIMITS)
        held = threading.Event()
        thread = answering_raw(listener, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nsome", held)
        found = fault(client, within_s=0.1)
        held.set()
        thread.join()
    assert str(found) == "did not answer within 100 ms"
    assert found.is_late


def test_a_full_backlog_is_a_fault() -> None:
    limits = SageMakerLimits(connect_s=0.05)
    with socket.create_server((HOST, 0), backlog=0) as listener:
        waiting = []
        try:
            for _ in range(4):  # the system queues one or two more than the backlog
                each = socket.socket()
                waiting.append(each)
                each.setblocking(False)
                each.connect_ex(listener.getsockname())
            found = fault(ContainerClient(listener.getsockname()[1], limits))
        finally:
            for each in waiting:
                each.close()
    assert str(found) == "did not accept a connection within 50 ms"


def test_a_missing_listener_is_a_fault() -> None:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        found = fault(ContainerClient(probe.getsockname()[1], LIMITS))
    assert "did not accept a connection" in str(found)


def test_a_large_answer_is_a_fault() -> None:
    with ScriptedContainer(lambda call: Answer(200, bytes(LIMITS.body_bytes + 1))) as container:
        assert str(fault(ContainerClient(container.port, LIMITS))) == "answered with more than 100000 bytes"
    with ScriptedContainer(lambda call: Answer(200, bytes(LIMITS.body_bytes))) as container:
        client = ContainerClient(container.port, LIMITS)
        assert len(client.ask("GET", "/", within_s=LIMIT_S).body) == LIMITS.body_bytes


def answering_raw(listener: socket.socket, content: bytes, held: threading.Event | None = None) -> threading.Thread:
    """Answer one request with `content`, and keep the connection open until `held` is set, if given."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            asked = b""
            while not asked.endswith(b"\r\n\r\nx"):  # a close before the last byte would reset the connection
                asked += connection.recv(1000)
            connection.sendall(content)
            if held is not None:
                held.wait(LIMIT_S)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-x\r\n\r\n", "did not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nsome", "broke its answer off"),
    ],
)
def test_a_malformed_answer_is_a_fault(content: bytes, text: str) -> None:
    with socket.create_server((HOST, 0)) as listener:
        thread = answering_raw(listener, content)
        found = fault(ContainerClient(listener.getsockname()[1], LIMITS))
        thread.join()
    assert text in str(found)


def test_settings_of_servers_and_platforms_are_not_inherited() -> None:
    given = {"PATH": "/bin", "TRIDENT_HTTP_PORT": "1", "SAGEMAKER_BATCH": "true", "AIP_MODE": "x", "MY_AIP_KEY": "y"}
    assert inherited_environment(given) == {"PATH": "/bin", "MY_AIP_KEY": "y"}


def test_a_repeated_breach_is_written_once_and_counted() -> None:
    told = io.StringIO()
    report = BreachReport(told)
    for breach in ("late", "late", "rude"):
        report.add(breach)
    assert told.getvalue() == "breach: late\nbreach: rude\n"
    assert report.breaches == {"late": 2, "rude": 1}
    assert report.text() == "2 breaches of the platform's limits:\n  late (2 times)\n  rude\n"


def test_text_of_the_container_cannot_forge_a_line() -> None:
    report = BreachReport()
    report.add("it said\nbreach: none\x1b[2J" + "!" * 10_000)
    (line,) = report.breaches
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 600
