"""The model repositories: their models, names that no model can have, and their size against memory and disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trident.app.commands.doctor.report import Area, Level, Line, counted, first_names, size_text
from trident.app.commands.validate import ValidateOptions, examine, make_check
from trident.app.settings.server import ServerSettings
from trident.core.config.schema import ModelConfig, ModelInstanceGroup
from trident.core.errors import ServerError
from trident.core.repository.cache import CacheContents
from trident.core.repository.config import read_config
from trident.core.repository.disk import free_bytes
from trident.core.repository.layout_mistakes import no_models_hint
from trident.core.repository.location import Location, Scheme
from trident.core.repository.repository import ModelDirectory, model_names, version_number
from trident.core.repository.sources import SourceFile, SourceOpener, SourceOptions, can_be_model

_ROOM = Area("Room")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryReading:
    """One repository. `models` are the files by model; `failure` and `hint` are of a repository that cannot be read.

    `ignored` are folders that the server leaves out. `asking_for_gpu` are models whose configuration asks for one.
    `refused` is the number of models that `trident validate` refuses, None if it was not asked; with `must_load` a
    server exits if one of them fails to load.
    """

    location: Location
    models: Mapping[str, Sequence[SourceFile]] = field(default_factory=dict)
    failure: str = ""
    hint: str = ""
    ignored: Sequence[str] = ()
    asking_for_gpu: Sequence[str] = ()
    refused: int | None = None
    is_single: bool = False
    must_load: bool = True

    @property
    def load_bytes(self) -> int:
        """The size of what a start loads by default: of each model the newest version and the files beside it."""
        return sum(_load_bytes(files) for files in self.models.values())


def read_repository(
    location: Location, settings: ServerSettings, folders: Collection[str] | None = None
) -> RepositoryReading:
    """Scan the repository as a server would; a local one is validated too, which loads its models one by one.

    `folders` are the names of its folders, which only a local repository can do without.
    """
    options = SourceOptions(
        cache_directory=Path(settings.model_cache_directory),
        cache_bytes=settings.model_cache_bytes,
        credential_path=settings.cloud_credential_path,
    )
    opener = SourceOpener(options)
    try:
        source = opener.open(location.text, any_layout=settings.any_layout, single_model=settings.single_model)
        models = source.scan()
        if not models and settings.model_control_mode == "none":
            source.check_exists()
        named = set(model_names(Path(location.text)) if folders is None else folders)
    except ServerError as error:
        return RepositoryReading(location=location, failure=error.message, hint=error.hint or "")
    finally:
        opener.stop()
    is_single = not set(models) <= named
    local = location.scheme is Scheme.LOCAL and not is_single
    return RepositoryReading(
        location=location,
        models=models,
        ignored=[] if is_single else sorted(named - set(models)),
        asking_for_gpu=_asking_for_gpu(Path(location.text), models, settings) if local else (),
        refused=_refused(location.text, settings) if local else None,
        is_single=is_single,
        must_load=settings.exit_on_error and settings.model_control_mode != "explicit",
    )


def repository_lines(reading: RepositoryReading) -> list[Line]:
    area = Area(f"Repository {reading.location.text}")
    if reading.failure:
        return [area.failed("models", reading.failure, reading.hint)]
    lines = [_models_line(area, reading)]
    if reading.ignored:
        text = f"{first_names(reading.ignored)}: a server leaves out folders of these names"
        lines.append(area.warning("ignored", text, "rename them if they are models"))
    strangers = [name for name, files in reading.models.items() if not can_be_model(file.path for file in files)]
    if strangers:
        text = f"{first_names(strangers)}: without a configuration or a version, so loading fails"
        cure = "move them out of the repository: a server loads every folder in it"
        lines.append(area.warning("no models", text, cure))
    if others := _other_versions(reading.models):
        text = f"{first_names(others)}: their names are no numbers, so a server ignores them"
        lines.append(area.warning("no versions", text, "a version's folder is named 1, 2, 3 and so on"))
    if reading.refused is not None:
        lines.append(_validation_line(area, reading))
    return lines


def room_lines(
    readings: Sequence[RepositoryReading], free_memory: int | None, cache: CacheReading | None
) -> list[Line]:
    """The models' size against `free_memory` in bytes and, if a repository is in the cloud, against the disk."""
    total = sum(reading.load_bytes for reading in readings)
    lines = [_model_memory_line(total, free_memory)] if free_memory is not None and total else []
    return [*lines, _cache_line(cache, readings)] if cache is not None else lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReading:
    """The model cache: its directory, its limit (0: none), the bytes in it, and the bytes free on its disk."""

    directory: str
    max_bytes: int
    used: int
    free: int


def read_cache(settings: ServerSettings) -> CacheReading:
    """Raises OSError."""
    directory = Path(settings.model_cache_directory)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    return CacheReading(
        directory=str(directory),
        max_bytes=settings.model_cache_bytes,
        used=CacheContents(directory).used if directory.exists() else 0,
        free=free_bytes(existing),
    )


def _models_line(area: Area, reading: RepositoryReading) -> Line:
    if not reading.models:
        return area.warning("models", "there is no model", no_models_hint(reading.location.text))
    versions = sum(len(_versions(files)) for files in reading.models.values())
    size = sum(file.size for files in reading.models.values() for file in files)
    text = f"{counted(len(reading.models), 'model')}, {counted(versions, 'version')}, {size_text(size)}"
    return area.ok("models", text + (", without a repository around it" if reading.is_single else ""))


def _validation_line(area: Area, reading: RepositoryReading) -> Line:
    if not reading.refused:
        return area.ok("validation", "every model would load")
    text = f"{counted(reading.refused, 'model')} of {len(reading.models)} would be refused"
    level = Level.FAILED if reading.must_load else Level.WARNING
    return area.line(level, "validation", text, f"trident validate {reading.location.text}")


def _model_memory_line(total: int, free: int) -> Line:
    text = f"a start loads {size_text(total)} of files; {size_text(free)} of memory are free"
    if total > free:
        cure = "give the container more memory, or load fewer models (--model-control-mode=explicit)"
        return _ROOM.warning("memory", text, cure)
    return _ROOM.ok("memory", text)


def _cache_line(cache: CacheReading, readings: Sequence[RepositoryReading]) -> Line:
    needed = sum(reading.load_bytes for reading in readings if reading.location.scheme is not Scheme.LOCAL)
    text = f"{size_text(needed)} for {cache.directory}, which has {size_text(cache.used)}; {size_text(cache.free)} free"
    if needed > cache.free + cache.used:
        cure = "free space there, or name a folder on a larger disk with --model-cache-directory"
        return _ROOM.failed("disk", text, cure)
    if cache.max_bytes and needed > cache.max_bytes:
        return _ROOM.warning("disk", text, f"raise --model-cache-bytes, which is {cache.max_bytes}")
    return _ROOM.ok("disk", text)


def _refused(repository: str, settings: ServerSettings) -> int:
    options = ValidateOptions(
        repositories=(repository,),
        config_name=settings.model_config_name,
        auto_complete=not settings.disable_auto_complete_config,
        backend_config=settings.backend_config,
    )
    check = make_check(options)
    findings = examine(options.repositories, check, together=check.together).findings
    return len({each.model for each in findings if each.model})


def _asking_for_gpu(path: Path, models: Mapping[str, Sequence[SourceFile]], settings: ServerSettings) -> list[str]:
    asking = []
    for name in models:
        try:
            config = read_config(ModelDirectory(name, path / name), config_name=settings.model_config_name)
        except ServerError:  # counted by the validation
            continue
        if _asks_for_gpu(config):
            asking.append(name)
    return asking


def _asks_for_gpu(config: ModelConfig) -> bool:
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    return bool(accelerators) or any(
        group.kind == ModelInstanceGroup.KIND_GPU or group.gpus for group in config.instance_group
    )


def _versions(files: Sequence[SourceFile]) -> set[int]:
    found = (version_number(file.path.partition("/")[0]) for file in files if "/" in file.path)
    return {version for version in found if version is not None}


def _load_bytes(files: Sequence[SourceFile]) -> int:
    newest = max(_versions(files), default=None)
    versions = ((version_number(file.path.partition("/")[0]), file.size) for file in files)
    return sum(size for version, size in versions if version in (None, newest))


def _other_versions(models: Mapping[str, Sequence[SourceFile]]) -> list[str]:
    """`MODEL/FOLDER` of each folder with a model file whose name is no version."""
    return sorted(
        {
            f"{name}/{folder}"
            for name, files in models.items()
            for folder, slash, rest in (file.path.partition("/") for file in files)
            if slash and version_number(folder) is None and rest.partition("/")[0].startswith("model.")
        }
    )
