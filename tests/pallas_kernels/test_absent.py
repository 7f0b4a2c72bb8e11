"""A package may be imported without another one, which other threads import as ever."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pallas_kernels.fa4.absent import absent

USER = "try:\n    import heavy_package\nexcept ImportError:\n    heavy_package = None\n"


def test_a_package_is_absent_for_one_thread_and_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_package.py").write_text("weight = 3\n")
    (tmp_path / "its_user.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    with absent("heavy_package"), ThreadPoolExecutor(1) as other:
        assert importlib.import_module("its_user").heavy_package is None
        assert "heavy_package" not in sys.modules
        assert other.submit(importlib.import_module, "heavy_package").result().weight == 3
        del sys.modules["heavy_package"]
    assert importlib.import_module("heavy_package").weight == 3
    assert sys.meta_path == finders
    for name in ("heavy_package", "its_user"):
        del sys.modules[name]


def test_a_failing_import_leaves_no_finder() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError, match="no_such"), absent("torch"):
        importlib.import_module("no_such")
    assert sys.meta_path == finders
