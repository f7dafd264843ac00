"""ONNX Runtime's model packages: folders with variants of a model, each for an execution provider, and a manifest.

ONNX Runtime chooses the variant for the providers of a session. Source: docs/spec/onnxruntime-backend.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from trident.core.backends.onnxruntime.providers import ProviderRequest
from trident.core.errors import ConfigInvalid, ModelLoadFailed

MANIFEST = "manifest.json"
"""The file of a model (`default_model_filename`) that is a package."""

_PORTABLE = "portable"


class Variant(NamedTuple):
    """The variant of a package for a session: its model file, and its entries of the session's configuration."""

    name: str
    provider: str
    file: Path
    session_entries: dict[str, str]


def variant_of(folder: Path, providers: Sequence[ProviderRequest], allowed: Sequence[str], model: str) -> Variant:
    """The variant of the package in `folder` for the first of `providers` that has one.

    `allowed` are the entries that it may set. Raises ModelLoadFailed for a package that ONNX Runtime refuses or that
    has no variant for the providers, and ConfigInvalid for what a package may not ask for.
    """
    if not hasattr(onnxruntime, "ModelPackage"):
        raise ModelLoadFailed(
            f"unable to load model '{model}', ONNX Runtime {onnxruntime.__version__} has no model packages",
            hint="they need ONNX Runtime 1.32",
            model=model,
        )
    try:
        package = onnxruntime.ModelPackage.open(str(folder))
        try:
            # An installed package may name files anywhere, by its own word.
            if (layout := package.get_info()["layout"]) != _PORTABLE:
                raise ConfigInvalid(
                    f"the model package has the layout '{layout}', which may name files outside of it: only "
                    f"'{_PORTABLE}' is served",
                    model=model,
                )
            context = onnxruntime.ModelPackageContext(str(folder))
            names = context.get_component_names()
            if len(names) != 1:
                raise ConfigInvalid(
                    f"the model package has the components {', '.join(map(repr, names))}: a model is one of them",
                    hint="make a package, and so a model, of each, and an ensemble of the models",
                    model=model,
                )
            (name,) = names
            component = str(name)
            name, provider, chosen = _chosen(context, component, providers, model)
            variant = json.loads(package.get_variant_json(component, name))
            own = variant.get("executor_info", {}).get("ort")
            if not isinstance(own, dict) or "model_file" not in own:
                raise ConfigInvalid(
                    f"variant '{name}' of the model package has no executor_info.ort.model_file in its description",
                    model=model,
                )
            file = context.resolve_string_ref(own["model_file"], chosen.get_selected_variant_folder_path(), True)
        finally:
            package.close()
    except (RuntimeError, ValueError, OSError) as exc:
        raise ModelLoadFailed(
            f"unable to load model '{model}', ONNX Runtime refuses its package: {exc}", model=model
        ) from exc
    entries = own.get("session_options") or {}
    refused = [f"session_options '{each}'" for each in entries if each not in allowed]
    refused += [f"provider_options '{each}'" for each in own.get("provider_options") or {}]
    if refused:
        raise ConfigInvalid(
            f"variant '{name}' of the model package sets {', '.join(refused)}",
            hint=f"a package may set the session_options {', '.join(allowed)}; options of providers are parameters of "
            "an execution accelerator in the configuration",
            model=model,
        )
    return Variant(name, provider, Path(file), dict(entries))


def _chosen(context: Any, component: str, providers: Sequence[ProviderRequest], model: str) -> tuple[str, str, Any]:
    """The name of the variant, its provider, and ONNX Runtime's context of it."""
    for provider in providers:
        options = onnxruntime.SessionOptions()
        if provider.device is None:
            options.add_provider(provider.name, {})
        else:
            options.add_provider_for_devices([provider.device], {})
        try:
            chosen = context.select_component(component, onnxruntime.ModelPackageOptions(options))
        except RuntimeError:  # no variant for it
            continue
        return chosen.get_selected_variant_name(), provider.name, chosen
    of = [
        f"'{name}' for {context.get_variant_ep_name(component, name)}" for name in context.get_variant_names(component)
    ]
    raise ModelLoadFailed(
        f"unable to load model '{model}', its package has no variant for {', '.join(each.name for each in providers)}: "
        f"it has {', '.join(of)}",
        model=model,
    )
