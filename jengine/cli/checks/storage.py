"""Doctor: compilation cache and demo model on disk."""

from __future__ import annotations

from pathlib import Path

from jengine.capacity.device_memory import gigabytes
from jengine.cli.checks.finding import Finding
from jengine.demo import model_path
from jengine.runner.disk.compile_cache import default_cache_dir, prepare_private

DEMO_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def check() -> list[Finding]:
    return [compile_cache(default_cache_dir()), demo_model(model_path())]


def compile_cache(directory: Path) -> Finding:
    """The compilation cache; without one every start recompiles."""
    problem = prepare_private(directory)
    if problem:
        text = f"{directory}: {problem}. Until then every start compiles everything again"
        return Finding("note", "compile cache", text, {"directory": str(directory)})
    sizes = [file.stat().st_size for file in directory.iterdir() if file.is_file()]
    figures = {"directory": str(directory), "files": len(sizes), "bytes": sum(sizes)}
    text = f"{directory}, {len(sizes)} files, {gigabytes(sum(sizes))}, writable by you alone"
    return Finding("OK", "compile cache", text, figures)


def demo_model(folder: Path) -> Finding:
    missing = [name for name in DEMO_FILES if not (folder / name).is_file()]
    if missing:
        text = f"{folder} lacks {', '.join(missing)}. Install jengine again; other models work"
        return Finding("note", "demo model", text)
    size = sum((folder / name).stat().st_size for name in DEMO_FILES)
    return Finding("OK", "demo model", f"{folder}, {gigabytes(size)}")
