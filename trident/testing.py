"""For tests of models with pytest: a server as a fixture, and golden requests as it answers them now.

One line in the root `conftest.py` gives all tests the fixture `trident_server`:

    pytest_plugins = ["trident.testing"]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pytest

from trident.app.library.functions import as_array
from trident.app.library.server import Server
from trident.core.config.golden import as_numbers
from trident.core.errors import InvalidRequest
from trident.core.inference.tensors import BY_NAME, Array

if TYPE_CHECKING:
    from trident.app.library.model import Model

__all__ = ["record_golden", "trident_server"]

_Servers = dict[str, Server]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("trident_repository", "Model repositories of the fixture trident_server", "paths", ["models"])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "trident(*repositories, **options): other repositories and options for the fixture trident_server"
    )


@pytest.fixture(scope="session")
def _trident_servers() -> Iterator[_Servers]:
    servers: _Servers = {}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def trident_server(request: pytest.FixtureRequest, _trident_servers: _Servers) -> Server:
    """A Server in the test's process, which also answers HTTP at `trident_server.url`, on a free port of loopback.

    Its repositories are those of the ini option `trident_repository`, `models` beside the ini file by default. The
    marker `@pytest.mark.trident("other_models", model_control_mode="explicit")` gives a test others, and options of
    `Server`. Tests with equal ones share a server, which ends with the session.
    """
    marker = request.node.get_closest_marker("trident")
    repositories = marker.args if marker and marker.args else request.config.getini("trident_repository")
    places = [str(request.config.rootpath / place) for place in repositories]
    options: dict[str, Any] = dict(marker.kwargs) if marker else {}
    key = repr((places, sorted(options.items())))
    server = _trident_servers.get(key)
    if server is None:
        server = _trident_servers[key] = Server(*places, **options)
        server.serve()
    return server


def record_golden(
    model: Model,
    file: str | Path,
    inputs: Mapping[str, npt.ArrayLike],
    *,
    tolerance: Mapping[str, float] | None = None,
) -> Path:
    """Ask `model`, and write the request and its answer to `file` as a golden request, which is then checked at each
    load; see docs/golden-requests.md. The place for it is `REPOSITORY/MODEL/golden/NAME.json`.

    `tolerance` has `absolute`, `relative` or both, for outputs of floating-point numbers. The options of `model` count:
    with `outputs` only those are expected. Returns the file. Raises what `infer` raises, and InvalidRequest for strings
    that are not UTF-8 or options that a golden request does not have.
    """
    answer = model.infer(inputs)
    metadata = model.metadata()
    given = {each["name"]: each["datatype"] for each in metadata["inputs"]}
    made = {each["name"]: each["datatype"] for each in metadata["outputs"]}
    tensors = {name: as_array(value, BY_NAME[given[name]], f"input '{name}'") for name, value in inputs.items()}
    document: dict[str, Any] = {
        "request": {
            "inputs": [_tensor(name, given[name], array) for name, array in tensors.items()],
            **({"outputs": [{"name": name} for name in answer]} if len(answer) < len(made) else {}),
        },
        "response": {"outputs": [_tensor(name, made[name], array) for name, array in answer.items()]},
        **({"tolerance": dict(tolerance)} if tolerance else {}),
    }
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return path


def _tensor(name: str, datatype: str, array: Array) -> dict[str, Any]:
    values = as_numbers(array, BY_NAME[datatype]).reshape(-1).tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": [_json(name, v) for v in values]}


def _json(name: str, value: object) -> object:
    """A value as golden requests have it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"'{name}' has bytes that are not UTF-8, which JSON cannot hold") from None
    return value
