"""Divides models among servers: groups of models in one file become routes of a Gateway, and values for the chart.

    python -m deploy.kubernetes.route_models deploy/kubernetes/samples/groups.yaml build

For each group the folder gets GROUP.yaml, the values of a Helm release of that name, whose server loads these models
alone, and routes.yaml has an HTTPRoute and a GRPCRoute:

* HTTP goes by the path, /v2/models/NAME/..., of which clients notice nothing;
* gRPC goes by the header `trident-model`, as its paths name no model: Triton's clients send it with `headers=`;
* what names no model reaches the group that is the `default`;
* /groups/GROUP/... is any path of one group: its readiness, index, statistics and metadata.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HEADER = "trident-model"
# Matches of one rule, as the Gateway API limits them. It has 16 rules for a route: here 14 with three matches a model.
_MOST_MATCHES = 8
_MOST_MODELS = 14 * _MOST_MATCHES // 3
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
_MODEL = re.compile(r"[\w.-]{1,200}")
# Continuations of a path after the name of a model.
_MODEL_PATHS = ("/v2/models/{}", "/v1/models/{}")

Object = dict[str, Any]


class BadGroups(ValueError):
    """The file is not what it has to be. The message says where, and what was expected."""


def checked(document: Any) -> Object:
    """The document. Raises BadGroups."""
    if not isinstance(document, dict) or not isinstance(document.get("groups"), dict) or not document["groups"]:
        raise BadGroups("expected an object with 'gateway' and 'groups', each group with 'models'")
    unknown = set(document) - {"gateway", "hosts", "default", "values", "groups"}
    if unknown:
        raise BadGroups(f"unknown: {', '.join(sorted(unknown))}; known are gateway, hosts, default, values and groups")
    if not isinstance(document.get("gateway"), dict) or "name" not in document["gateway"]:
        raise BadGroups("gateway: expected an object with 'name', and 'namespace' if it is in another one")
    hosts = document.get("hosts")
    if not isinstance(hosts, dict) or set(hosts) != {"http", "grpc"} or hosts["http"] == hosts["grpc"]:
        raise BadGroups(
            "hosts: expected 'http' and 'grpc', two names, because a Gateway has one kind of route for a host"
        )
    groups = document["groups"]
    owners: dict[str, str] = {}
    for name, group in groups.items():
        if not _NAME.fullmatch(str(name)):
            raise BadGroups(
                f"groups.{name}: a group's name is that of a release: lower-case letters, digits and hyphens"
            )
        if not isinstance(group, dict) or set(group) - {"models", "values"} or not group.get("models"):
            raise BadGroups(f"groups.{name}: expected 'models', a list of names, and perhaps 'values'")
        if len(group["models"]) > _MOST_MODELS:
            raise BadGroups(f"groups.{name}: more than {_MOST_MODELS} models do not fit into one route")
        for model in group["models"]:
            if not isinstance(model, str) or not _MODEL.fullmatch(model):
                raise BadGroups(f"groups.{name}.models: {model!r} is not the name of a model that fits into a path")
            if model in owners:
                raise BadGroups(f"model '{model}' is in two groups, {owners[model]} and {name}")
            owners[model] = name
    if document.get("default") not in groups:
        raise BadGroups(f"default: expected one of the groups, {', '.join(groups)}")
    return document


def routes(document: Object) -> list[Object]:
    """The HTTPRoute and the GRPCRoute of each group."""
    return [
        route
        for name, group in document["groups"].items()
        for route in (_http_route(document, name, group["models"]), _grpc_route(document, name, group["models"]))
    ]


def _route(document: Object, kind: str, name: str, rules: list[Object]) -> Object:
    protocol = kind.removesuffix("Route").lower()
    spec = {"parentRefs": [document["gateway"]], "hostnames": [document["hosts"][protocol]]}
    labels = {"app.kubernetes.io/name": "trident", "app.kubernetes.io/instance": name}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": f"{name}-{protocol}", "labels": labels},
        "spec": {**spec, "rules": rules},
    }


def _http_route(document: Object, name: str, models: list[str]) -> Object:
    # A prefix is of whole segments: /v2/models/a is not /v2/models/ab, and `:predict` needs a match of its own.
    paths = [_prefix(path.format(model)) for model in models for path in _MODEL_PATHS]
    paths += [{"path": {"type": "Exact", "value": f"/v1/models/{model}:predict"}} for model in models]
    rules = [_rule(paths[at : at + _MOST_MATCHES], name, 8000) for at in range(0, len(paths), _MOST_MATCHES)]
    rewrite = {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}}
    rules.append({**_rule([_prefix(f"/groups/{name}")], name, 8000), "filters": [rewrite]})
    if name == document["default"]:
        rules.append(_rule([_prefix("/")], name, 8000))
    return _route(document, "HTTPRoute", name, rules)


def _grpc_route(document: Object, name: str, models: list[str]) -> Object:
    matches: list[Object] = [{"headers": [{"type": "Exact", "name": HEADER, "value": model}]} for model in models]
    rules = [_rule(matches[at : at + _MOST_MATCHES], name, 8001) for at in range(0, len(matches), _MOST_MATCHES)]
    if name == document["default"]:
        rules.append(_rule([], name, 8001))
    return _route(document, "GRPCRoute", name, rules)


def _prefix(path: str) -> Object:
    return {"path": {"type": "PathPrefix", "value": path}}


def _rule(matches: list[Object], service: str, port: int) -> Object:
    rule: Object = {"backendRefs": [{"name": service, "port": port}]}
    return {"matches": matches, **rule} if matches else rule


def values(document: Object) -> dict[str, Object]:
    """The values of each group's release: those of all groups, then its own, and the models that it loads."""
    made = {}
    for name, group in document["groups"].items():
        merged = _merged(document.get("values") or {}, group.get("values") or {})
        chosen = {"TRIDENT_MODEL_CONTROL_MODE": "explicit", "TRIDENT_LOAD_MODEL": ";".join(group["models"])}
        made[name] = _merged(merged, {"settings": chosen})
    return made


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{name: _merged(base.get(name), value) for name, value in over.items()}}


def main(arguments: list[str]) -> None:
    """Write routes.yaml and the values of each group."""
    if len(arguments) != 2:
        raise SystemExit("python -m deploy.kubernetes.route_models GROUPS.yaml FOLDER")
    source, folder = map(Path, arguments)
    try:
        document = checked(yaml.safe_load(source.read_text()))
    except (BadGroups, OSError, yaml.YAMLError) as error:
        raise SystemExit(f"{source}: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "routes.yaml").write_text(yaml.safe_dump_all(routes(document), sort_keys=False))
    for name, each in values(document).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(each, sort_keys=False))
    for name in document["groups"]:
        print(f"helm upgrade --install {name} deploy/helm/trident --values {folder / name}.yaml")
    print(f"kubectl apply -f {folder / 'routes.yaml'}")


if __name__ == "__main__":
    main(sys.argv[1:])
