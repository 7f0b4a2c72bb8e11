"""Hides an optional dependency of a package while the package is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any


class _Finder:
    """Meta path finder that makes imports of one package fail in one thread."""

    def __init__(self, name: str) -> None:
        self.name, self.thread = name, get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self.name and get_ident() == self.thread:
            raise ModuleNotFoundError(f"{name} is not used here", name=name)


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Make imports of a package fail in this thread, unless it is already imported."""
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
