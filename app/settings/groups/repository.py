"""The settings of the model repositories: their addresses, their cache on the disk, and when models are loaded.

Source: docs/spec/server-options.md section 2, docs/spec/repository.md sections 1.3 and 1.10.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import (
    BOOLEAN,
    FILE,
    FLAG,
    FOLDER,
    INT64_MAX,
    REPOSITORY,
    TEXT,
    at_least,
    choice,
    integer,
    number,
)

_SECTION = "Model repository"


@dataclass(frozen=True, kw_only=True, repr=False)
class RepositorySettings:
    """Part of ServerSettings."""

    model_repository: tuple[str, ...] = repeated(
        "model-repository",
        REPOSITORY,
        "Model repository with one directory per model: a local directory, s3://bucket/prefix, "
        "s3://host:port/bucket/prefix or gs://bucket/prefix.",
        section=_SECTION,
        aliases=("model-store",),
    )
    model_control_mode: str = option(
        "none",
        "model-control-mode",
        choice("model-control-mode", "none", "poll", "explicit"),
        "Which models are loaded: all at startup (none), all at startup and again when their repository changes "
        "(poll), or those of --load-model at startup and others on request (explicit).",
        section=_SECTION,
    )
    load_model: tuple[str, ...] = repeated(
        "load-model",
        TEXT,
        "Model to load at startup, * for all; only with --model-control-mode=explicit.",
        section=_SECTION,
    )
    repository_poll_secs: int = option(
        15,
        "repository-poll-secs",
        at_least(0),
        "Seconds between two polls of the repositories; only with --model-control-mode=poll.",
        section=_SECTION,
    )
    model_namespacing: bool = option(
        False,
        "model-namespacing",
        BOOLEAN,
        "Whether several repositories may contain models of the same name; such a model cannot be requested by its "
        "name alone.",
        section=_SECTION,
    )
    model_cache_directory: str = option(
        "",
        "model-cache-directory",
        FOLDER,
        "Directory in which models from cloud storage are cached, also for later starts and other servers.",
        section=_SECTION,
        shown_default="$TRITON_AWS_MOUNT_DIRECTORY, $TRITON_GCS_MOUNT_DIRECTORY or ~/.cache/trident",
        own=True,
    )
    model_cache_bytes: int = option(
        68719476736,
        "model-cache-bytes",
        integer(0, INT64_MAX),
        "Size in bytes of that directory above which unused models are removed from it, the least recently used "
        "first; 0: no limit.",
        section=_SECTION,
        own=True,
    )
    aws_mount_directory: str = option(
        "",
        "",
        FOLDER,
        "Directory for models from cloud storage if --model-cache-directory is not given.",
        section=_SECTION,
        variable="TRITON_AWS_MOUNT_DIRECTORY",
    )
    gcs_mount_directory: str = option(
        "",
        "",
        FOLDER,
        "The same if TRITON_AWS_MOUNT_DIRECTORY is not set either.",
        section=_SECTION,
        variable="TRITON_GCS_MOUNT_DIRECTORY",
    )
    cloud_credential_path: str = option(
        "",
        "",
        FILE,
        "File with credentials for cloud storage, by path; without it the credentials of each platform's own tools "
        "are used.",
        section=_SECTION,
        variable="TRITON_CLOUD_CREDENTIAL_PATH",
    )
    disable_auto_complete_config: bool = option(
        False,
        "disable-auto-complete-config",
        FLAG,
        "Take each model configuration as written, instead of completing it from the model file.",
        section=_SECTION,
    )
    strict_model_config: bool = option(
        False,
        "strict-model-config",
        BOOLEAN,
        "Deprecated: true means --disable-auto-complete-config.",
        section=_SECTION,
    )
    model_config_name: str = option(
        "",
        "model-config-name",
        TEXT,
        "Use configs/<name>.pbtxt of a model if it exists, otherwise config.pbtxt.",
        section=_SECTION,
    )
    single_model: str = option(
        "",
        "single-model",
        TEXT,
        "The repository may also be a single model, as its folder or as a folder that contains model.onnx: serve it "
        "under this name.",
        section=_SECTION,
        own=True,
    )
    model_load_thread_count: int = option(
        4,
        "model-load-thread-count",
        at_least(1),
        "Number of models that are loaded at the same time. A value below 1 counts as 1.",
        section=_SECTION,
    )
    model_load_retry_count: int = option(
        0,
        "model-load-retry-count",
        at_least(0),
        "Number of further attempts to load a model after a failure. A negative value counts as 0.",
        section=_SECTION,
    )
    model_unload_timeout_secs: float = option(
        300.0,
        "model-unload-timeout-secs",
        number(0),
        "Seconds that requests in flight have to finish when a model is unloaded or replaced. Then those that wait are "
        "refused, and the processes of a Python model that still execute are ended. 0: no limit.",
        section=_SECTION,
        own=True,
    )
