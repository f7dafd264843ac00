"""Finds TorchScript archives, and reads what they say themselves, without PyTorch. A pickle is never loaded.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from pathlib import Path, PurePosixPath

from core.backends.file_content import content_hint, start_of
from core.backends.file_origin import written_by
from core.backends.model_path import path_of_model
from core.backends.pytorch.forward import Argument
from core.config.schema import ModelConfig
from core.errors import ModelLoadFailed

DEFAULT_FILE = "model.pt"

_ARCHIVE = b"PK\x03\x04"
# The constants of the code: every TorchScript archive has them, and nothing that `torch.save` writes does.
_CONSTANTS = "constants.pkl"
_SCRIPT_IT = "save the model with torch.jit.script(model).save(PATH) or torch.jit.trace(model, example).save(PATH)"


# More than the code of any class, and than the beginning of a module in `data.pkl` that names its class.
_CODE_AT_MOST = 16 << 20
_PICKLE_READ = 4 << 10
_FORWARD = (
    r"^class {name}\(Module\):\n(?:(?:  .*)?\n)*?  def forward\(self: [\w.$]{{1,1000}}(?P<arguments>[^)]{{0,100000}})\)"
)
_ARGUMENT = re.compile(r",\s*(\w+): ([^,\[]+(?:\[[^=]*?\](?=[,\s]|$))?)")
_KINDS = {"Tensor": "TensorType", "List": "ListType", "Dict": "DictType"}


def module_path(version: Path, config: ModelConfig) -> Path:
    """The file in the directory of a version. Raises RepositoryUnavailable with Triton's text."""
    return path_of_model(version, config, config.default_model_filename or DEFAULT_FILE)


def check_archive(path: Path, model: str) -> None:
    """Raise ModelLoadFailed unless the file is a TorchScript archive. Reads its table of contents, runs nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        raise _failed("the file is not a TorchScript archive", model, _no_archive_hint(path)) from None
    if any(Path(name).name == _CONSTANTS for name in names):
        return
    if any(Path(name).name == "data.pkl" for name in names):
        raise _failed(
            "the file is a pickle that torch.save has written, which could run any code when it is loaded",
            model,
            _SCRIPT_IT,
        )
    hint = 'rename it to model.pt2 and set platform: "torch_aoti"' if _is_package(names) else _SCRIPT_IT
    raise _failed("the file is not a TorchScript archive", model, hint)


def arguments_in(path: Path) -> list[Argument] | None:
    """The arguments of `forward` without `self`, from the text of the code; None where it is not as expected.

    The code of the module's class is found by the name in `data.pkl`, of which no instruction is executed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = archive.namelist()[0].partition("/")[0]
            with archive.open(f"{root}/data.pkl") as pickled:
                name = _class_of(pickled.read(_PICKLE_READ))
            *folders, own = name.split(".")
            entry = archive.getinfo(str(PurePosixPath(root, "code", *folders)) + ".py")
            if entry.file_size > _CODE_AT_MOST:
                return None
            code = archive.read(entry).decode()
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
        return None
    match = re.search(_FORWARD.format(name=re.escape(own)), code, re.MULTILINE)
    if match is None:
        return None
    found = _ARGUMENT.findall(match["arguments"])
    return [Argument(name, _KINDS.get(kind.partition("[")[0], kind), kind) for name, kind in found]


def _class_of(pickled: bytes) -> str:
    """The name of the first class in a pickle, `__torch__.Net`. Raises ValueError."""
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name == "GLOBAL" and isinstance(argument, str):
            return argument.replace(" ", ".")
    raise ValueError("no class is named")


def _failed(text: str, model: str, hint: str | None) -> ModelLoadFailed:
    return ModelLoadFailed(f"failed to load model '{model}': {text}", hint=hint, model=model)


def _is_package(names: list[str]) -> bool:
    return any("aotinductor" in name or name.endswith("archive_format") for name in names)


def _no_archive_hint(path: Path) -> str:
    if hint := content_hint(path):
        return hint
    if start_of(path, 1) == b"\x80":
        return f"the file is a pickle, which could run any code when it is loaded: {_SCRIPT_IT}"
    if start_of(path, len(_ARCHIVE)) == _ARCHIVE:
        return "the archive is incomplete, because its table of contents is missing: copy the file again"
    return f"compare the file{written_by(path)} with the original; or {_SCRIPT_IT}"
