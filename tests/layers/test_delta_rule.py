"""The triangular system of the gated delta rule's tiles."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.delta_rule import DeltaRule, solve_below

# Of 8 rules in one program, as of 8 devices: more than XLA's pool has threads on a small machine.
AT_ONCE = """
import jax, jax.numpy as jnp
from jengine.layers.delta_rule import DeltaRule

tokens = {"q": (4, 64, 8, 16), "k": (4, 64, 8, 16), "v": (4, 64, 8, 1, 16)}
tokens = {name: jnp.ones(shape) for name, shape in tokens.items()}
tokens |= {name: jnp.ones((4, 64, 8, 1)) for name in ("log_decay", "beta")}
rule = DeltaRule(jnp.ones((8, 1)), jnp.ones((8, 1)), 16)
run = jax.jit(lambda tokens: [rule.within({**tokens, "k": tokens["k"] * i}) for i in range(8)])
for _ in range(50):
    jax.block_until_ready(run(tokens))
"""


@pytest.mark.parametrize("size", [1, 3, 16, 64])
def test_a_system_of_like_keys_is_solved_to_float32(size: int) -> None:
    """Powers of this system grow to 1e17 before they vanish."""
    rng = np.random.default_rng(size)
    system = np.tril(rng.uniform(0.8, 1.0, (2, 3, size, size)), -1).astype(np.float32)
    right = rng.normal(size=(2, 3, size, 5)).astype(np.float32)
    exact = np.linalg.solve(np.eye(size) + system.astype(np.float64), right)
    found = jax.jit(solve_below)(jnp.asarray(system), jnp.asarray(right))
    np.testing.assert_allclose(found, exact, atol=2e-6 * np.abs(exact).max())


def test_a_tile_calls_no_library() -> None:
    """LAPACK's calls wait for threads that may wait for them."""
    rule = DeltaRule(jnp.ones((2, 1)), jnp.ones((2, 1)), 8)
    tokens = {"q": (1, 4, 2, 8), "k": (1, 4, 2, 8), "v": (1, 4, 2, 1, 8)}
    given = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in tokens.items()}
    given |= {
        name: jax.ShapeDtypeStruct((1, 4, 2, 1), jnp.float32) for name in ("log_decay", "beta")
    }
    assert "custom_call" not in jax.jit(rule.within).lower(given).as_text()


@pytest.mark.slow
def test_rules_at_once_do_not_wait_for_each_other() -> None:
    subprocess.run([sys.executable, "-c", AT_ONCE], check=True, timeout=300)
