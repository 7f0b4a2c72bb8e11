"""Triton kernels called from jitted JAX, run in Triton's interpreter."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from pallas_kernels.launch import (  # noqa: E402
    KernelError,
    Launch,
    bridge,
    call_kernel,
    interpreting,
)
from pallas_kernels.launch.bridge import compile_kernel, pointer_types  # noqa: E402
from tests.pallas_kernels import launch_kernels as kernels  # noqa: E402

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="triton was imported without TRITON_INTERPRET=1"
)


def scaled(x: jax.Array, factor: float) -> jax.Array:
    launch = Launch(grid=(x.shape[0],), constants={"WIDTH": x.shape[1], "FACTOR": factor})
    return call_kernel(kernels.scale_rows, x, out=[x], launch=launch)[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_new_arrays(dtype: str) -> None:
    x = jnp.asarray(np.arange(24).reshape(3, 8), dtype)
    factor = 2 if dtype == "int32" else 1.5
    np.testing.assert_array_equal(jax.jit(scaled, static_argnums=1)(x, factor), x * factor)
    np.testing.assert_array_equal(scaled(x, factor), x * factor)  # not jitted


def test_bfloat16_rounds_to_nearest_even() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 64)), jnp.float32)
    launch = Launch(grid=(4,), constants={"WIDTH": 64, "FACTOR": 1.0})
    out = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)]
    (narrow,) = call_kernel(kernels.scale_rows, x, out=out, launch=launch)
    np.testing.assert_array_equal(narrow, x.astype(jnp.bfloat16))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_products_of_every_type(dtype: str) -> None:
    a, b = jnp.asarray(np.random.default_rng(0).normal(size=(2, 16, 16)), dtype)
    out = [jax.ShapeDtypeStruct((16, 16), jnp.float32)]
    launch = Launch(grid=(1,), constants={"SIZE": 16})
    (product,) = call_kernel(kernels.multiply, a, b, out=out, launch=launch)
    expected = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)


def test_arrays_written_in_place_come_back_after_the_new_ones() -> None:
    total, x = jnp.ones((2, 8)), jnp.asarray(np.arange(16.0).reshape(2, 8), jnp.float32)

    @jax.jit
    def run(total: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
        launch = Launch(grid=(2,), constants={"WIDTH": 8})
        return call_kernel(kernels.add_rows, total, x, out=[x], in_place=(0,), launch=launch)

    before, after = run(total, x)
    np.testing.assert_array_equal(before, np.ones((2, 8)))
    np.testing.assert_array_equal(after, 1 + x)
    np.testing.assert_array_equal(total, np.ones((2, 8)))  # not donated, so not touched


def test_what_nobody_writes_is_nan() -> None:
    x = jnp.ones((3, 8))
    launch = Launch(grid=(2,), constants={"WIDTH": 8, "FACTOR": 1.0})
    (out,) = call_kernel(kernels.scale_rows, x, out=[x], launch=launch)
    assert np.isnan(out[2]).all()
    assert np.isfinite(out[:2]).all()


def test_a_launch_may_depend_on_the_device() -> None:
    seen = []

    def launch(capability: int) -> Launch:
        seen.append(capability)
        return Launch(grid=(1,), constants={"WIDTH": 8, "FACTOR": 2.0})

    (out,) = call_kernel(
        kernels.scale_rows, jnp.ones((1, 8)), out=[jnp.ones((1, 8))], launch=launch
    )
    np.testing.assert_array_equal(out, np.full((1, 8), 2.0))
    assert seen == [90]


def test_equal_launches_are_one_program() -> None:
    first = Launch(grid=[2], constants={"A": 1, "B": 2})
    assert first == Launch(grid=(2,), constants={"B": 2, "A": 1})
    assert hash(first) == hash(Launch(grid=(2,), constants={"B": 2, "A": 1}))
    assert first != Launch(grid=(2,), constants={"A": 1, "B": 3})


def test_a_type_that_kernels_do_not_know_is_named() -> None:
    with pytest.raises(KernelError, match=r"scale_rows: .*complex64.*bfloat16"):
        pointer_types(kernels.scale_rows, [jnp.ones(2, jnp.complex64)])


def test_missing_constants_are_named() -> None:
    with pytest.raises(KernelError, match=r"FACTOR.*constants \['WIDTH'\]"):
        compile_kernel(kernels.scale_rows, ("*fp32", "*fp32"), (("WIDTH", 8),), 4, 3, 90)


@pytest.mark.parametrize(
    ("version", "error", "used"),
    [
        ("0.4.1", None, True),
        ("0.4.1", TypeError("takes 2, given 3"), False),
        ("0.3.1", None, False),
    ],
)
def test_jax_triton_is_used_where_it_works(
    version: str, error: Exception | None, used: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def triton_call(x: jax.Array, **_: object) -> jax.Array:
        if error:
            raise error
        return x

    module = ModuleType("jax_triton")
    module.__spec__ = ModuleSpec("jax_triton", None)
    module.triton_call = triton_call
    monkeypatch.setitem(sys.modules, "jax_triton", module)
    monkeypatch.setattr(bridge.importlib.metadata, "version", lambda _: version)
    assert bridge.use_jax_triton.__wrapped__(90) is used
    assert ("launched without it: TypeError: takes 2, given 3" in caplog.text) == bool(error)
