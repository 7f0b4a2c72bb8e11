"""Work of `jengine cache`: save compiled programs as a bundle, load one, list either.

In: parsed arguments. Out: files, and lines on the terminal. The format is described in
runner/disk/warm_bundle.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.cli.flags import engine_arguments
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from jengine.runner.disk.compile_cache import (
    enable_compile_cache,
    names_directory,
    usual_cache_dir,
)
from jengine.runner.disk.machine import this_machine
from jengine.runner.disk.warm_bundle import (
    FORMAT,
    Manifest,
    load_bundle,
    read_manifest,
    save_bundle,
    used_entries,
)
from jengine.sampling_params import SamplingParams
from pallas_kernels.choice import compiled_cpu_library, cpu_library_folder
from pallas_kernels.cpu.compiler import NoKernels

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

# Settings that do not affect compiled programs.
OUTSIDE_PROGRAMS = ("tokenizer", "chat_template", "show_progress", "disable_log_stats")


def save(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> None:
    """Start an engine and save the compilation cache entries that it used."""
    if arguments.file is None or arguments.model is None:
        raise ConfigError("cache save: give the file to write and the model: save FILE MODEL.")
    file = Path(arguments.file)
    if file.exists() and not arguments.overwrite:
        raise ConfigError(f"{file} exists already; --overwrite replaces it.")
    if not file.absolute().parent.is_dir():  # checked before the engine starts, which is slow
        raise ConfigError(f"{file}: there is no folder {file.absolute().parent}; make it first.")
    settings = checked_settings(arguments)
    directory = cache_directory(settings["compilation_config"].get("cache_dir"))
    with used_entries(directory) as used, open_llm(arguments.model, **settings) as llm:
        llm.wait_until_warm()
        # The first request compiles small programs outside the step, such as transfers.
        short = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        llm.generate([{"prompt_token_ids": [0]}], short, use_tqdm=False)
        programs = llm.stats().programs
    if not used.names:
        raise ConfigError(
            f"the engine has used no entry of {directory}: JAX's persistent cache is switched off, "
            "or keeps nothing as small as this. See JAX's settings of its compilation cache."
        )
    about = described(arguments, settings, directory)
    manifest = save_bundle(file, directory, used.names, about, compiled_cpu_library())
    terminal.say(
        f"{file}: {programs} programs of steps and small helpers, {len(manifest.entries)} entries, "
        f"{manifest.size / 1e6:.1f} MB."
    )


def described(arguments: argparse.Namespace, settings: dict[str, Any], directory: Path) -> Manifest:
    """The bundle's manifest, without entries."""
    compilation = dict(settings["compilation_config"])
    compilation.pop("cache_dir", None)  # local path
    given = {**settings, "compilation_config": compilation}
    shown = {
        name: value for name, value in given.items() if value != {} and name not in OUTSIDE_PROGRAMS
    }
    return Manifest(
        format=FORMAT,
        model=Path(arguments.model).name or arguments.model,
        settings=shown,
        machine=this_machine(),
        directory=str(directory) if names_directory() else None,
        entries={},
    )


def checked_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Engine settings. Raises ConfigError if programs would be compiled in other processes."""
    settings = engine_arguments(arguments)
    if settings.get("executor", "auto") not in ("auto", "local"):
        raise ConfigError(
            f"cache save with --executor {settings['executor']}: workers compile on their own "
            "hosts. Make the bundle there, without an executor."
        )
    if settings.get("enforce_eager"):
        raise ConfigError("cache save with --enforce-eager: such an engine compiles no programs.")
    compilation = dict(settings.get("compilation_config", {}))
    if arguments.cache_dir is not None:
        compilation["cache_dir"] = arguments.cache_dir
    return {**settings, "compilation_config": compilation}


def load(arguments: argparse.Namespace, terminal: Terminal) -> None:
    """Verify a bundle and add its entries to the compilation cache."""
    if arguments.file is None:
        raise ConfigError("cache load: give the bundle: load FILE.")
    directory = cache_directory(arguments.cache_dir)
    loaded = load_bundle(
        Path(arguments.file),
        directory,
        this_machine(),
        names_directory=names_directory(),
        libraries=library_folder,
        overwrite=arguments.overwrite,
    )
    there = len(loaded.there)
    terminal.say(f"{directory}: {len(loaded.written)} entries loaded, {there} were there already.")
    if loaded.kept:
        terminal.say(
            f"{len(loaded.kept)} entries differ from those that were compiled here, which stay; "
            "--overwrite replaces them."
        )


def show(arguments: argparse.Namespace, terminal: Terminal) -> None:
    """List the programs of a bundle, or of this machine's cache."""
    if arguments.file is None:
        directory = Path(arguments.cache_dir or usual_cache_dir())
        files = [item for item in directory.glob("*-cache") if item.is_file()]
        size = sum(item.stat().st_size for item in files)
        terminal.say(f"{directory}: {len(files)} entries, {size / 1e6:.1f} MB")
        return
    manifest = read_manifest(Path(arguments.file))
    machine = manifest.machine
    terminal.say(f"model       {manifest.model}")
    for name, value in manifest.settings.items():
        terminal.say(f"            {name} = {value}")
    terminal.say(f"made with   jengine {machine.jengine}, jax {machine.jax}")
    terminal.say(f"for         {machine.devices} x {machine.device}, {machine.system}")
    terminal.say(f"entries     {len(manifest.parts)}, {manifest.size / 1e6:.1f} MB")
    if manifest.kernels:
        terminal.say("            with the library of CPU kernels that the programs call")
    differences = machine.differences(this_machine())
    terminal.say("here        " + ("; ".join(differences) or "it fits this machine"))


def library_folder() -> Path:
    try:
        return cpu_library_folder()
    except NoKernels as reason:
        raise ConfigError(f"cache load: {reason}") from reason


def cache_directory(wanted: Any) -> Path:
    """Compilation cache that an engine with this cache_dir uses. Raises ConfigError if it is
    off."""
    directory = enable_compile_cache(wanted)
    if directory is None:
        raise ConfigError(
            "there is no compile cache to use: cache_dir is False, or the usual directory is not "
            "usable. Give one with --cache-dir."
        )
    return directory
