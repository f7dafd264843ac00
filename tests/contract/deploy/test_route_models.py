"""deploy/kubernetes/route_models.py: its routes fit the Gateway API, and lead each request to the servers of its model.

There is no Gateway here, so nginx gets the routes as its own configuration, in front of two servers.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml

from deploy.kubernetes.route_models import HEADER, BadGroups, checked, main, routes, values
from tests.contract.deploy.kubernetes_manifests import refused
from tests.contract.deploy.test_helm import rendered
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess, environment_without
from tests.needed import program
from tests.project import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

GROUPS = ROOT / "deploy" / "kubernetes" / "samples" / "groups.yaml"


def sample() -> dict[str, Any]:
    return checked(yaml.safe_load(GROUPS.read_text()))


def test_routes_fit_the_gateway_api() -> None:
    document = sample()
    # As many models as a group may have.
    document["groups"]["vision"]["models"] = [f"m{n}" for n in range(37)]
    made = routes(checked(document))
    assert [each["kind"] for each in made] == ["HTTPRoute", "GRPCRoute"] * 2
    hosts = {each["kind"]: each["spec"]["hostnames"] for each in made}
    assert hosts["HTTPRoute"] != hosts["GRPCRoute"]
    assert refused(made) == []
    made[0]["spec"]["rules"][0]["matches"][0]["path"]["type"] = "Prefix"
    assert [each.split()[0] for each in refused(made)] == ["HTTPRoute"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"default": "x"}, "default: expected one of the groups, numbers, vision"),
        ({"hosts": {"http": "a", "grpc": "a"}}, "hosts: expected 'http' and 'grpc', two names"),
        ({"gateway": "g"}, "gateway: expected an object with 'name'"),
        ({"groups": {"a": {"models": ["m"]}, "b": {"models": ["m"]}}}, "model 'm' is in two groups, a and b"),
        ({"groups": {"A": {"models": ["m"]}}}, "groups.A: a group's name is that of a release"),
        ({"groups": {"a": {"models": ["m/n"]}}}, "groups.a.models: 'm/n' is not the name of a model"),
        ({"groups": {"a": {"models": [f"m{n}" for n in range(38)]}}}, "groups.a: more than 37 models"),
        ({"group": {}}, "unknown: group"),
    ],
)
def test_wrong_file_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadGroups, match=re.escape(message)):
        checked({**sample(), **change})


def test_command_writes_routes_and_values_of_the_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(GROUPS), str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"routes.yaml", "numbers.yaml", "vision.yaml"}
    assert f"kubectl apply -f {tmp_path}/routes.yaml" in capsys.readouterr().out
    for name, models in (("numbers", ("simple",)), ("vision", ("digits",))):
        settings = rendered(yaml.safe_load((tmp_path / f"{name}.yaml").read_text())).settings
        assert (settings.model_control_mode, settings.load_model) == ("explicit", models)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses for HTTP and gRPC of nginx, with a server for each group behind it."""
    nginx = program("nginx", "apt install nginx-light")
    folder = tmp_path_factory.mktemp("gateway")
    document = sample()
    servers = {
        name: ServerProcess(
            ROOT / "deploy" / "models",
            folder / name,
            "--shutdown-grace-secs=0",
            environment={**environment_without("TRIDENT_"), **each["settings"]},
        )
        for name, each in values(document).items()
    }
    with servers["numbers"], servers["vision"]:
        http_port, grpc_port = free_ports(2)
        (folder / "nginx.conf").write_text(_nginx(routes(document), servers, http_port, grpc_port))
        command = [nginx, "-p", str(folder), "-e", "error.log", "-c", "nginx.conf"]
        process = subprocess.Popen(command, cwd=folder)
        try:
            until(lambda: process.poll() is not None or _answers(f"http://{HOST}:{http_port}/v2"), str)
            assert process.poll() is None, (folder / "error.log").read_text()
            yield f"http://{HOST}:{http_port}", f"{HOST}:{grpc_port}"
        finally:
            process.terminate()
            process.wait(10)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def _nginx(made: list[dict[str, Any]], servers: dict[str, ServerProcess], http_port: int, grpc_port: int) -> str:
    """The routes as nginx's configuration. A prefix of the Gateway API is one of whole segments."""
    locations, groups = [], []
    for route in made:
        for rule in route["spec"]["rules"]:
            server = servers[rule["backendRefs"][0]["name"]]
            target = f"proxy_pass http://{HOST}:{server.http_port}"
            rewrites = "/" if "filters" in rule else ""
            if route["kind"] == "GRPCRoute":
                models = [match["headers"][0]["value"] for match in rule.get("matches", [])] or ["default"]
                groups += [f"{model} {HOST}:{server.grpc_port};" for model in models]
                continue
            for match in rule["matches"]:
                path = match["path"]["value"].rstrip("/")
                if match["path"]["type"] == "Exact" or not rewrites:
                    locations.append(f"location = {path or '/'} {{ {target}; }}")
                if match["path"]["type"] == "PathPrefix":
                    locations.append(f"location {path}/ {{ {target}{rewrites}; }}")
    temporary = "".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""
        daemon off; master_process off; pid nginx.pid;
        events {{}}
        http {{
            access_log off; {temporary}
            map $http_{HEADER.replace("-", "_")} $group {{ {" ".join(groups)} }}
            server {{ listen {HOST}:{http_port}; {" ".join(locations)} }}
            server {{ listen {HOST}:{grpc_port} http2; location / {{ grpc_pass grpc://$group; }} }}
        }}"""


def test_path_routes_to_the_server_of_the_model(gateway: tuple[str, str]) -> None:
    with httpx.Client(base_url=gateway[0]) as client:
        for model, version in (("simple", "1"), ("digits", "1")):
            assert client.get(f"/v2/models/{model}").json()["versions"] == [version]
            assert client.get(f"/v2/models/{model}/ready").status_code == 200
            assert client.get(f"/v1/models/{model}").json()["name"] == model
        rows = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}
        answer = client.post("/v1/models/simple:predict", json={"instances": [rows]}).json()
        assert answer["predictions"][0]["OUTPUT0"] == list(range(1, 17))
        # A name that only begins like a model's is the default group's, which does not have it.
        assert client.get("/v2/models/digitsx").status_code == 404


def test_each_group_has_its_own_readiness_and_index(gateway: tuple[str, str]) -> None:
    with httpx.Client(base_url=gateway[0]) as client:
        for group, model in (("numbers", "simple"), ("vision", "digits")):
            assert client.get(f"/groups/{group}/v2/health/ready").status_code == 200
            index = client.post(f"/groups/{group}/v2/repository/index", json={"ready": True}).json()
            assert [each["name"] for each in index] == [model]
        # Without a group it is that of the default.
        assert [each["name"] for each in client.post("/v2/repository/index", json={"ready": True}).json()] == ["simple"]


def test_header_routes_grpc_to_the_server_of_the_model(gateway: tuple[str, str]) -> None:
    with triton.InferenceServerClient(gateway[1]) as client:
        assert client.is_model_ready("digits", headers={HEADER: "digits"})
        assert not client.is_model_ready("digits")
        given = [triton.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
        for each in given:
            each.set_data_from_numpy(np.ones((1, 16), np.int32))
        answer = client.infer("simple", given, headers={HEADER: "simple"})
        assert answer.as_numpy("OUTPUT0").tolist() == [[2] * 16]
