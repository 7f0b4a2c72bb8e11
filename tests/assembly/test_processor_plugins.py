"""Logits processors of installed packages serve every engine of the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jengine.assembly.processors import engine_processors, host_processors, installed_processors
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError
from tests.api.processor_functions import OneToken, only_seven

HERE = "tests.api.processor_functions"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with these entry points."""

    def made(group: str, **points: str) -> None:
        info = tmp_path / f"{group.replace('.', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: of-{group}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {path}\n" for name, path in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        installed_processors.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield made
    installed_processors.cache_clear()


def test_functions_and_classes_are_taken_beside_the_engine_own(install: Install) -> None:
    install("jengine.logits_processors", seven=f"{HERE}:only_seven", one=f"{HERE}:OneToken")
    assert engine_processors(None) == [only_seven]
    assert host_processors(None) == (OneToken,)
    # Given by name as well, it runs once.
    named = EngineArgs("any", logits_processors=[f"{HERE}:OneToken"])
    assert host_processors(named.logits_processors) == (OneToken,)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_package:f", "the logits processor 'mine' of of-jengine.* cannot be loaded"),
        (f"{HERE}:OnTheHost", "the entry point 'mine' .* is the class OnTheHost; expected a JAX"),
    ],
)
def test_what_cannot_be_used_is_named(install: Install, path: str, words: str) -> None:
    install("jengine.logits_processors", mine=path)
    with pytest.raises(ConfigError, match=words):
        engine_processors(None)


def test_of_those_for_vllm_only_what_fits_is_taken(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("vllm.logits_processors", torch=f"{HERE}:OnTheHost", one=f"{HERE}:OneToken")
    with caplog.at_level(logging.WARNING):
        assert host_processors(None) == (OneToken,)
    assert "Left out, as it is made for vLLM" in caplog.text and "OnTheHost" in caplog.text
