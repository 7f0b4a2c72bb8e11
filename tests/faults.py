"""Faults in child processes: at the n-th call of a function, an exception, a pause or a signal.

`fault_environment` writes a `sitecustomize.py` that a child's Python imports at its start and that
does what `JENGINE_TEST_FAULT="module:Class.function:action@n"` says; several are joined by commas.
The engine itself knows nothing of faults. Actions: `raise`, `exit`, `kill`, `stop` (SIGSTOP),
`sleep=SECONDS`, `check` (assert that the blocks of a scheduler add up). With `@n` a fault happens
at the n-th call, with `@n+` at each one from then on.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
VARIABLE = "JENGINE_TEST_FAULT"
# What a child writes to stderr if it unpickles anything.
UNPICKLED = "UNPICKLED"
# Words of an error that must never leave the process: a path, an address and a key.
SECRETS = "/secret/model/path at 0x7f31deadbeef with key sk-secret"


class Fault(NamedTuple):
    """What happens, and at which calls of which function."""

    module: str
    function: str  # perhaps in a class
    action: str
    first: int
    again: bool

    @classmethod
    def read(cls, text: str) -> Fault:
        where, _, what = text.rpartition(":")
        module, _, function = where.partition(":")
        action, _, number = what.partition("@")
        return cls(
            module, function, action, int(number.removesuffix("+") or 1), number.endswith("+")
        )

    def happens(self, count: int) -> bool:
        return count >= self.first if self.again else count == self.first


def act(action: str, arguments: tuple[Any, ...] = ()) -> None:
    """Do what a fault does."""
    name, _, argument = action.partition("=")
    if name == "raise":
        raise RuntimeError(f"a fault of the test in {SECRETS}")
    if name == "exit":
        os._exit(3)
    if name == "sleep":
        time.sleep(float(argument))
        return
    if name == "check":
        arguments[0].cache.check()
        return
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[name])


def faulty(fault: Fault, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a fault in it."""
    count = 0

    @functools.wraps(function)
    def wrapped(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if fault.happens(count):
            act(fault.action, arguments)
        return function(*arguments, **more)

    return wrapped


class Faults(MetaPathFinder):
    """Puts faults into modules as they are imported."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        mine = [fault for fault in self._faults if fault.module == name]
        if not mine:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)))
        self._wrap_loader(spec, mine)
        return spec

    def _wrap_loader(self, spec: ModuleSpec, faults: Sequence[Fault]) -> None:
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for fault in faults:
                owner: Any = module
                *classes, function = fault.function.split(".")
                for name in classes:
                    owner = getattr(owner, name)
                setattr(owner, function, faulty(fault, getattr(owner, function)))

        loader.exec_module = exec_module


def tell_of_unpickling(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: Python looks up a class for something that is being unpickled."""
    if event == "pickle.find_class":
        os.write(2, f"{UNPICKLED} {arguments}\n".encode())


def install() -> None:
    """Called by the `sitecustomize.py` of a test."""
    sys.addaudithook(tell_of_unpickling)
    texts = os.environ.get(VARIABLE, "")
    if texts:
        sys.meta_path.insert(0, Faults([Fault.read(text) for text in texts.split(",")]))


def fault_environment(folder: Path, *faults: str) -> dict[str, str]:
    """Environment variables for a child with these faults; the folder is the test's own."""
    (folder / "sitecustomize.py").write_text("from tests.faults import install\n\ninstall()\n")
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        VARIABLE: ",".join(faults),
    }
