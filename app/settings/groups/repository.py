"""The settings of the model repositories: where they are, when models are loaded, what is kept on the disk.

Source: docs/spec/server-options.md section 2, docs/spec/repository.md sections 1.3 and 1.10.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings.option import option, repeated
from app.settings.option_types import BOOLEAN, FLAG, INT64_MAX, TEXT, at_least, choice, integer

_SECTION = "Model repository"


@dataclass(frozen=True, kw_only=True, repr=False)
class RepositorySettings:
    """Part of ServerSettings."""

    model_repository: tuple[str, ...] = repeated(
        "model-repository",
        TEXT,
        "Where the models are, one directory for each: a local directory, s3://bucket/prefix, "
        "s3://host:port/bucket/prefix or gs://bucket/prefix.",
        section=_SECTION,
        aliases=("model-store",),
    )
    model_control_mode: str = option(
        "none",
        "model-control-mode",
        choice("model-control-mode", "none", "poll", "explicit"),
        "When models are loaded: all at start (none), also when their repository changes (poll), or those of "
        "--load-model at start and others on request (explicit).",
        section=_SECTION,
    )
    load_model: tuple[str, ...] = repeated(
        "load-model",
        TEXT,
        "Model to load at start, * for all; only with --model-control-mode=explicit.",
        section=_SECTION,
    )
    repository_poll_secs: int = option(
        15,
        "repository-poll-secs",
        at_least(0),
        "Seconds between two looks at the repositories; only with --model-control-mode=poll.",
        section=_SECTION,
    )
    model_namespacing: bool = option(
        False,
        "model-namespacing",
        BOOLEAN,
        "Whether models of one name may be in several repositories; such a name cannot be asked for alone.",
        section=_SECTION,
    )
    model_cache_directory: str = option(
        "",
        "model-cache-directory",
        TEXT,
        "Directory in which models from cloud storage are kept, also for the next start and for other servers.",
        section=_SECTION,
        shown_default="$TRITON_AWS_MOUNT_DIRECTORY, $TRITON_GCS_MOUNT_DIRECTORY or ~/.cache/trident",
        own=True,
    )
    model_cache_bytes: int = option(
        68719476736,
        "model-cache-bytes",
        integer(0, INT64_MAX),
        "Size of that directory above which models that nobody uses leave it, the longest unused first; 0: no limit.",
        section=_SECTION,
        own=True,
    )
    aws_mount_directory: str = option(
        "",
        "",
        TEXT,
        "Directory for what is fetched from cloud storage, where --model-cache-directory is not given.",
        section=_SECTION,
        variable="TRITON_AWS_MOUNT_DIRECTORY",
    )
    gcs_mount_directory: str = option(
        "",
        "",
        TEXT,
        "The same, where the former is not set either.",
        section=_SECTION,
        variable="TRITON_GCS_MOUNT_DIRECTORY",
    )
    cloud_credential_path: str = option(
        "",
        "",
        TEXT,
        "File with credentials for cloud storage, by path; without it those of each platform's own tools are used.",
        section=_SECTION,
        variable="TRITON_CLOUD_CREDENTIAL_PATH",
    )
    disable_auto_complete_config: bool = option(
        False,
        "disable-auto-complete-config",
        FLAG,
        "Take each model configuration as it is written, instead of filling it in from the model file.",
        section=_SECTION,
    )
    strict_model_config: bool = option(
        False,
        "strict-model-config",
        BOOLEAN,
        "Deprecated: true is --disable-auto-complete-config.",
        section=_SECTION,
    )
    model_config_name: str = option(
        "",
        "model-config-name",
        TEXT,
        "Use configs/<name>.pbtxt of a model where it has one, config.pbtxt where not.",
        section=_SECTION,
    )
    single_model: str = option(
        "",
        "single-model",
        TEXT,
        "The repository may also be one model, its folder or a folder with model.onnx in it: serve it by this name.",
        section=_SECTION,
        own=True,
    )
    model_load_thread_count: int = option(
        4,
        "model-load-thread-count",
        at_least(1),
        "Models that are loaded at the same time. Less than 1 counts as 1.",
        section=_SECTION,
    )
    model_load_retry_count: int = option(
        0,
        "model-load-retry-count",
        at_least(0),
        "Further attempts at a model that failed to load. Negative counts as 0.",
        section=_SECTION,
    )
