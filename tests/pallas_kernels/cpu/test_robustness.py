"""Wrong calls, threads and memory that runs out: an error or the same bits, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu.library import target
from pallas_kernels.cpu.matmul import FusedNorm, matmul, normalize, pack

ROOT = Path(__file__).parents[3]
problem = cpu_problem()
pytestmark = pytest.mark.skipif(problem is not None, reason=str(problem))


def numbers(*shape: int, dtype: Any = jnp.bfloat16) -> Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


def call(name: str, shape: tuple[int, ...], *operands: Array, **attributes: Any) -> Array:
    """A handler, without the checks of its Python function."""
    return jax.ffi.ffi_call(target(name), jax.ShapeDtypeStruct(shape, jnp.float32))(
        *operands, **attributes
    )


def test_a_wrong_call_is_explained_and_the_next_one_works() -> None:
    x, weight = numbers(4, 64), pack(numbers(64, 32))
    right = matmul(x, weight, 32)
    for wrong, text in (
        (lambda: matmul(x, weight, 64), "matmul: the weight has another size"),
        (lambda: matmul(x, weight, 32, residual=right[:2]), "matmul: the residual must be float32"),
        (lambda: matmul(x, weight, 32, positions=jnp.zeros(3, jnp.int32)), "matmul: positions"),
        (lambda: normalize(x, FusedNorm("rms", jnp.ones(63))), "normalize: the weight has another"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=text):
            jax.block_until_ready(wrong())
        np.testing.assert_array_equal(matmul(x, weight, 32), right)


def test_a_call_with_other_operands_or_attributes_is_refused() -> None:
    x, empty = numbers(2, 8, dtype=jnp.float32), jnp.zeros(0)
    none = jnp.zeros(0, jnp.int32)
    eps, weight = np.float32(1e-6), jnp.ones(8)
    given = {"norm": np.int32(1), "eps": eps, "offset": np.float32(0)}
    without = {name: value for name, value in given.items() if name != "offset"}
    jax.block_until_ready(call("normalize", (2, 8), x, weight, empty, none, **given))
    for operands, attributes, text in (
        ((x, weight, empty), given, "too few operands"),
        ((x, weight, empty, none, none), given, "too many operands"),
        ((x, weight, empty, none), without, "there is no attribute offset"),
        ((x, weight, empty, none), {**given, "eps": np.float64(1)}, "another type"),
        ((x, weight, empty, none), {**given, "norm": np.int32(0)}, "norm must be 1 or 2"),
        ((x, weight, empty, none), {**given, "more": eps}, "unknown attri"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=f"normalize: .*{text}"):
            jax.block_until_ready(call("normalize", (2, 8), *operands, **attributes))


@pytest.mark.parametrize("value", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("name", ["storage", "gate", "activation", "norm"])
def test_an_attribute_that_is_not_one_of_its_values_is_refused(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, norm = numbers(2, 32), pack(numbers(32, 32)), FusedNorm("rms", jnp.ones(32))
    ffi_call, changed = jax.ffi.ffi_call, dict[str, Any]()

    def with_changes(*handler: Any) -> Any:
        return lambda *operands, **given: ffi_call(*handler)(*operands, **{**given, **changed})

    monkeypatch.setattr(jax.ffi, "ffi_call", with_changes)
    right = matmul(x, weight, 32, norm=norm)
    changed[name] = np.int32(value)
    with pytest.raises((ValueError, RuntimeError), match=f"matmul: {name} must be 0, 1"):
        jax.block_until_ready(matmul(x, weight, 32, norm=norm))
    changed.clear()
    np.testing.assert_array_equal(matmul(x, weight, 32, norm=norm), right)


def test_packing_from_a_storage_that_does_not_exist_is_refused() -> None:
    with pytest.raises((ValueError, RuntimeError), match="pack: storage must be 0, 1 or 2"):
        jax.block_until_ready(
            call("pack", (1, 1, 32, 32, 1), jnp.ones((1, 32, 32)), gated=False,
                 storage=np.int32(7))
        )  # fmt: skip


def test_threads_that_call_at_once_get_the_same_bits() -> None:
    x, weight = numbers(33, 256), pack(numbers(256, 128))
    wanted, found = np.asarray(matmul(x, weight, 128)), []

    def work() -> None:
        found.extend(np.asarray(matmul(x, weight, 128)) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(np.array_equal(one, wanted) for one in found)


def in_a_process(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, cwd=ROOT,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_one_thread_and_many_give_the_same_bits() -> None:
    program = (
        "import jax, jax.numpy as jnp, hashlib, numpy as np\n"
        "from pallas_kernels.cpu.matmul import matmul, pack\n"
        "draw = np.random.default_rng(0).normal\n"
        "x, w = (jnp.asarray(draw(size=s), jnp.bfloat16) for s in ((70, 300), (300, 200)))\n"
        "made = jax.jit(matmul, static_argnums=2)(x, pack(w), 200)\n"
        "print(hashlib.sha256(np.asarray(made).tobytes()).hexdigest())"
    )
    assert len({in_a_process(program, NPROC=threads) for threads in ("1", "16")}) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
def test_memory_that_runs_out_is_an_error_and_the_next_call_works() -> None:
    program = (
        "import resource, numpy as np, jax, jax.numpy as jnp\n"
        "from pallas_kernels.cpu.matmul import matmul, pack\n"
        "x, w = jnp.ones((4096, 16384), jnp.bfloat16), pack(jnp.ones((16384, 32), jnp.bfloat16))\n"
        "run = jax.jit(matmul, static_argnums=2).lower(x, w, 32).compile()\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_AS)\n"
        "limit = pages * resource.getpagesize() + 2**24\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, hard))\n"
        "try:\n    jax.block_until_ready(run(x, w))\n"
        "except Exception as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (soft, hard))\n"
        "print(float(run(x, w)[0, 0]))"
    )
    assert in_a_process(program).splitlines() == [
        "RESOURCE_EXHAUSTED: a CPU kernel cannot allocate its scratch memory", "16384.0",
    ]  # fmt: skip
