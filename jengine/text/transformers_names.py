"""Speeds up the import of transformers by caching its import structure.

At each import transformers scans the source of 2,500 model files (twice) for class names, which
takes longer than the rest of the import. The result depends only on the installed version, so it is
kept in jengine's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from jengine.cache_folder import cache_folder
from jengine.private_files import write_private

# Module that scans: define_import_structure -> {backends: {module: names}}, modules with a prefix.
FINDS_NAMES = "transformers.utils.import_utils"
Names = dict[frozenset[str], dict[str, set[str]]]
Find = Callable[..., Names]


def keep_names() -> None:
    """Make the next import of transformers use the cached names, or cache those that it finds."""
    if FINDS_NAMES not in sys.modules and _NamesFinder not in map(type, sys.meta_path):
        sys.meta_path.insert(0, _NamesFinder())


class _NamesFinder(MetaPathFinder):
    """Stays in `sys.meta_path` when it is done: an import in another thread would skip a finder if
    the list became shorter."""

    def __init__(self) -> None:
        self._done = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != FINDS_NAMES or self._done:
            return None
        self._done = True
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _NamesLoader(name, spec.loader.path)
        return spec


class _NamesLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if find := vars(module).get("define_import_structure"):
            package = Path(self.path).parents[1]
            vars(module)["define_import_structure"] = _with_kept_names(find, package)


def _with_kept_names(find: Find, package: Path) -> Find:
    models = package / "models"
    of_models = cache(lambda: _kept_names(lambda: find(str(models)), package))

    @wraps(find)
    def found(module_path: str | Path, prefix: str | None = None) -> Names:
        if Path(module_path) not in (models, models / "__init__.py"):
            return find(module_path, prefix)
        before = "" if prefix is None else f"{prefix}."
        return {
            backends: {before + module: set(names) for module, names in modules.items()}
            for backends, modules in of_models().items()
        }

    return found


def _file_of(package: Path) -> Path | None:
    """Cache file of the package at this place; None without a cache folder."""
    place = hashlib.sha256(str(package).encode()).hexdigest()[:16]
    with suppress(RuntimeError):  # no home directory
        return cache_folder() / f"transformers-{place}.json"
    return None


def _installed(package: Path) -> list[Any] | None:
    """What identifies the package's source; None if the source may change."""
    records = sorted(package.parent.glob(f"{package.name}-*.dist-info/RECORD"))
    if len(records) != 1:
        return None
    record, models = records[0].stat(), (package / "models").stat()
    return [records[0].parent.name, record.st_size, record.st_mtime_ns, models.st_mtime_ns]


def _kept_names(find: Callable[[], Names], package: Path) -> Names:
    installed, file = _installed(package), _file_of(package)
    if installed is None or file is None:
        return find()
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["installed"] == installed:
            return {frozenset(backends): dict(found) for backends, found in stored["names"]}
    names = find()
    found = [
        [sorted(x), {k: sorted(v) for k, v in modules.items()}] for x, modules in names.items()
    ]
    with suppress(OSError):  # unwritable or full
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(file, json.dumps({"installed": installed, "names": found}).encode())
    return names
