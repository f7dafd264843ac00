"""`trident emulate`: its platforms, the options of SageMaker, and the signals that stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.cli import main
from trident.app.commands.emulate import platform_of, stop_signals
from trident.app.commands.emulate_sagemaker import read_options
from trident.app.emulators.sagemaker.emulator import EmulatorOptions
from trident.app.emulators.sagemaker.hosting import Hosting


@pytest.mark.parametrize(
    ("arguments", "platform"),
    [
        (["sagemaker", "m"], "sagemaker"),
        (["vertex", "sagemaker"], "vertex"),
        (["--port=1", "--env", "A=1", "vertex", "m", "--", "x"], "vertex"),
    ],
)
def test_the_platform_is_the_first_platform_name(arguments: list[str], platform: str) -> None:
    assert platform_of(arguments) == platform


@pytest.mark.parametrize("arguments", [[], ["azure", "m"], ["--port=1"]])
def test_a_platform_must_be_named(arguments: list[str]) -> None:
    with pytest.raises(BadOption, match="a platform must be named: trident emulate sagemaker MODEL or"):
        platform_of(arguments)


@pytest.mark.parametrize("more", [["sagemaker"], ["sagemaker", "--multi-model"], ["vertex"]])
def test_a_missing_model_ends_the_command_before_anything_starts(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *more, str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


# In a separate process, because a failure is a main thread that blocks forever.
_MANY_SIGNALS = """
import os, signal, threading
from trident.app.commands.emulate import stop_signals
from tests.waiting import until

def send():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGTERM)

with stop_signals() as stopped:
    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive():
        stopped.wait(0)
    assert stopped.wait(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event_and_regains_its_action_afterwards(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_signals() as stopped:
            assert not stopped.is_set()
            os.kill(os.getpid(), number)
            assert stopped.wait(30)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_at_any_moment_does_not_block_the_main_thread() -> None:
    subprocess.run([sys.executable, "-c", _MANY_SIGNALS], check=True, timeout=120)


PLAIN = Hosting()


def read(*arguments: str) -> EmulatorOptions:
    return replace(read_options(arguments, {"HERE": "1"}), hosting=PLAIN)


def options(**more: Any) -> EmulatorOptions:
    return EmulatorOptions(
        command=(sys.executable, "-P", "-m", "trident.app"), environment={"HERE": "1"}, hosting=PLAIN, **more
    )


def test_a_model_is_the_only_required_argument() -> None:
    assert read("sagemaker", "m.tar.gz") == options(model="m.tar.gz")


def test_all_options_are_read() -> None:
    found = read("sagemaker", "--multi-model", "--port=8199", "--env=A=1", "--env", "B=x=y", "--env=C=", "folder")
    variables = {"A": "1", "B": "x=y", "C": ""}
    assert found == options(model="folder", multi_model=True, api_port=8199, variables=variables)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["sagemaker"], "one model must be named"),
        (["sagemaker", "a", "b"], "one model must be named"),
        (["sagemaker", "a", "--port=x"], "--port"),
        (["sagemaker", "a", "--port=65536"], "--port"),
        (["sagemaker", "a", "--env=A"], "NAME=VALUE"),
        (["sagemaker", "a", "--env==1"], "NAME=VALUE"),
        (["sagemaker", "a", f"--env=A={'x' * 1025}"], "at most 1024 bytes"),
        (["sagemaker", "a", *(f"--env=A{n}=1" for n in range(101))], "at most 100 variables"),
        (["sagemaker", "a", *(f"--env=A{n}={'x' * 1000}" for n in range(40))], "32768 in all"),
        (["sagemaker", "a", "--multi-modal"], "did you mean --multi-model?"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(BadOption) as refusal:
        read(*arguments)
    assert text in str(refusal.value)
