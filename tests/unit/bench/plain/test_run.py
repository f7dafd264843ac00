"""bench/plain.py: the options of the benchmark."""

from __future__ import annotations

import pytest

from bench.plain import BESIDE_KEYS, KEYS, parse

OTHER = "tritonserver --model-repository={repo} --http-port={http}"


def test_a_run_without_options_measures_everything_beside_flask() -> None:
    options = parse([])
    assert (options.only, options.servers, options.beside) == (KEYS, ["trident", "flask"], None)


def test_a_run_beside_another_server_leaves_flask_out() -> None:
    options = parse(["--beside", OTHER])
    assert (options.only, options.servers, options.beside) == (BESIDE_KEYS, ["trident"], OTHER)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--beside", "tritonserver --http-port={http}"], "lacks {repo}"),
        (["--beside", "tritonserver"], "lacks {repo} and {http}"),
        (["--beside", OTHER, "--update-readme"], "does not go with --beside"),
        (["--only", "a,z"], "z: not among"),
        (["--servers", "triton"], "choose from"),
    ],
)
def test_parse_refuses_wrong_options(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert problem in capsys.readouterr().err
