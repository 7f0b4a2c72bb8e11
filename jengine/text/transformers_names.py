"""Speeds up the import of transformers by caching its import structure.

At each import transformers scans the source of 2,500 model files (twice) for class names, which
takes longer than the rest of the import. The result depends only on the installed version, so it is
kept in jengine's cache folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from jengine.cache_folder import cache_folder

# Module that scans: define_import_structure -> {backends: {module: names}}, modules with a prefix.
FINDS_NAMES = "transformers.utils.import_utils"
Names = dict[frozenset[str], dict[str, set[str]]]
Find = Callable[..., Names]


def keep_names() -> None:
    """Make the next import of transformers use the cached names, or cache those that it finds."""
    if FINDS_NAMES not in sys.modules and _NamesFinder not in map(type, sys.meta_path):
        sys.meta_path.insert(0, _NamesFinder())


class _NamesFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != FINDS_NAMES:
            return None
        sys.meta_path.remove(self)
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
    of_models = cache(lambda: _kept_names(lambda: find(str(models)), _file_of(package)))

    def found(path: str | Path, prefix: str | None = None) -> Names:
        if Path(path) not in (models, models / "__init__.py"):
            return find(path, prefix)
        before = "" if prefix is None else f"{prefix}."
        return {
            backends: {before + module: set(names) for module, names in modules.items()}
            for backends, modules in of_models().items()
        }

    return found


def _file_of(package: Path) -> Path | None:
    """Cache file for this installation; None if its source may change or there is no cache
    folder."""
    records = sorted(package.parent.glob(f"{package.name}-*.dist-info/RECORD"))
    if len(records) != 1:
        return None
    installed = records[0].stat()
    version = records[0].parent.name.removesuffix(".dist-info")
    with suppress(RuntimeError):  # no home directory
        return cache_folder() / f"{version}-{installed.st_size}-{installed.st_mtime_ns}.json"
    return None


def _kept_names(find: Callable[[], Names], file: Path | None) -> Names:
    if file is None:
        return find()
    with suppress(OSError, ValueError, TypeError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {frozenset(backends): modules for backends, modules in stored}
    names = find()
    text = json.dumps(
        [[sorted(x), {k: sorted(v) for k, v in modules.items()}] for x, modules in names.items()]
    )
    with suppress(OSError):  # unwritable folder
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = file.with_suffix(f".{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.replace(file)
    return names
