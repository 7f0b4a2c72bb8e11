"""Restricts which folders may be loaded as LoRA adapters at run time.

In: settings, and a client's path. Out: a folder, or an error that reveals none. Must not know what
an adapter is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jengine.adapters import adapter_modules
from jengine.server.errors import ApiError
from jengine.weights.resolve import in_hub


def allowed_folders(dirs: Sequence[str], modules: Sequence[str]) -> list[Path]:
    """`--lora-dirs` if given, else the parent folders of `--lora-modules`."""
    if dirs:
        return [Path(one) for one in dirs]
    paths = [one.lora_path for one in adapter_modules(modules)]
    return [Path(path).parent for path in paths if not in_hub(path)]


def adapter_folder(allowed: Sequence[Path], given: str) -> str:
    """Resolve a client's path, or a name below an allowed folder, following links and
    dots first."""
    for place in allowed:
        folder = place / given  # an absolute path stays as it is
        inside = "\0" not in given and folder.resolve().is_relative_to(place.resolve())
        if inside and (Path(given).is_absolute() or folder.exists()):
            return str(folder.absolute())  # absolute, so that it is never a Hub repository's name
    raise ApiError(
        400,
        "lora_path: expected a folder below one of those that the server allows. It is started "
        "with --lora-dirs DIR, or allows the folders that its --lora-modules are in.",
        param="lora_path",
    )
