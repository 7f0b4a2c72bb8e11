"""Parts of contexts in decode attention: every token once, few programs, merged in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.decode_attention import context_parts, decode_attention
from pallas_kernels.decode_attention.context_parts import FIELDS, Split, part_list
from tests.marks import slow
from tests.pallas_kernels.implementations import TRITON
from tests.pallas_kernels.paged_cases import Case, attend, random_case

# So that the interpreter sees many parts of short contexts, and more of them than slots.
SMALL = {"waves": 2, "longest": 64, "shortest": 32, "multiple": 16, "most": 8, "kept": 64,
         "most_of_many": 4, "least_shared": 32}  # fmt: skip
LENGTHS = [300, 1, 65, 0]


def listed(split: Split, starts: Any, lengths: Any, window: int | None = None) -> np.ndarray:
    """The fields of the parts that exist, [parts, FIELDS]."""
    given = np.asarray(starts, np.int32), np.asarray(lengths, np.int32)
    words = jax.jit(lambda *given: part_list(split, *given, window))(*given)
    fields, counts = lists_of(split, words)
    assert (counts == np.bincount(fields[:, 0], minlength=split.rows)).all()
    assert (fields[:, 4] == 1).all()
    return fields


def lists_of(split: Split, words: Any) -> tuple[np.ndarray, np.ndarray]:
    """The fields of the parts that exist, [parts, FIELDS], and the number of each row's parts."""
    size = FIELDS * split.parts
    fields, total, counts = np.split(np.asarray(words), [size, size + 1])
    assert total[0] <= split.parts
    assert counts.max() <= split.parts // split.rows, "each has its places for results"
    return fields.reshape(FIELDS, -1)[:, : total[0]].T, counts


@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("rows", [3, *slow(1, 64)])
def test_parts_hold_every_token_once(rows: int, window: int | None) -> None:
    rng = np.random.default_rng(rows)
    starts = rng.integers(0, 20, rows) * 16
    lengths = np.where(rng.random(rows) < 0.2, 0, starts + rng.integers(1, 20_000, rows))
    split = Split(rows, 8, 20_000 if window is None else window)
    found = listed(split, starts, lengths, window)
    for row in range(rows):
        own = found[found[:, 0] == row]
        first = 0 if window is None else max(lengths[row] - window - starts[row], 0)
        end = max(lengths[row] - starts[row], first)
        assert own[0, 1] == first
        assert own[-1, 2] == end
        assert (own[1:, 1] == own[:-1, 2]).all()
        assert (own[:, 2] > own[:, 1]).all() or first == end
        assert (own[:, 3] == np.arange(len(own))).all()


def test_parts_follow_from_a_row_s_own_length() -> None:
    split = Split(4, 8, 131_072)
    lengths = [5000, 131_072, 40, 900]
    found = listed(split, [0] * 4, lengths)
    for row, length in enumerate(lengths):
        alone = listed(split, [0] * 4, [length, 0, 0, 0])
        own = found[found[:, 0] == row]
        np.testing.assert_array_equal(own[:, 1:3], alone[alone[:, 0] == 0][:, 1:3])


def test_long_tables_launch_no_programs_for_short_contexts() -> None:
    """256 rows of 1k tokens, in an engine for 131,072."""
    split = Split(256, 8, 131_072)
    assert len(listed(split, [0] * 256, [1024] * 256)) == 256, "one part per row"
    assert split.slots < 1.3 * 256, "and few programs without a part"
    assert split.parts <= 4 * 256, "16.8 MB of parts with 32 heads of 128"
    assert Split(1, 8, 131_072).slots == 64
    one = listed(Split(1, 8, 131_072), [0], [1024])
    assert len(one) == 4, "a single row is divided to fill the device"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes for which few tokens make many parts."""
    monkeypatch.setattr(context_parts, "_sizes", lambda: SMALL)
    monkeypatch.setattr(context_parts, "filling", int)
    jax.clear_caches()
    yield
    jax.clear_caches()


def run(case: Case, q: np.ndarray, lengths: list[int], **options: Any) -> tuple[np.ndarray, ...]:
    found = decode_attention(
        jnp.asarray(q), jnp.asarray(case.cache), case.layer, jnp.asarray(case.tables),
        jnp.asarray(case.starts), jnp.asarray(lengths, jnp.int32), head_dim=case.head_dim,
        window=case.window, return_lse=True, **options,
    )  # fmt: skip
    return tuple(map(np.asarray, found))


def queries(rows: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, 4, 8)).astype(np.float32)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.slow
def test_programs_take_several_parts_and_the_last_merges(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.interpreter import interpreter_builder

    case, q = random_case(LENGTHS), queries(len(LENGTHS))
    split = Split(len(LENGTHS), 2, case.tables.shape[1] * case.cache.shape[3])
    found = listed(split, case.starts, LENGTHS)
    assert len(found) > split.slots, "more parts than slots"
    assert set(np.bincount(found[:, 0])) == {1, 2, 5}
    sinks = jnp.asarray([0.5, -1.0, 2.0, 0.0])
    out, lse, counters = run(case, q, LENGTHS, implementation=implementation)
    assert not counters.any(), "the next call begins with these"
    for row, length in enumerate(LENGTHS[:-1]):
        expected = attend(q[row], case.keys[row], case.values[row], length - 1, None)
        np.testing.assert_allclose(out[row], expected, atol=2e-5)
    assert (out[-1] == 0).all()
    assert (lse[-1] == -np.inf).all()
    with_sinks = run(case, q, LENGTHS, implementation=implementation, sinks=sinks)[:2]
    for mine, reference in zip(with_sinks, run(case, q, LENGTHS, sinks=sinks), strict=True):
        np.testing.assert_allclose(mine, reference, atol=2e-5)

    # Whichever program is last merges, in the order of the parts.
    in_order = interpreter_builder.set_grid_idx
    last = split.slots * 2 - 1
    monkeypatch.setattr(
        interpreter_builder, "set_grid_idx", lambda x, y, z: in_order(last - x, y, z)
    )
    backwards = run(case, q, LENGTHS, implementation=implementation)
    np.testing.assert_array_equal(backwards[0], out)
    np.testing.assert_array_equal(backwards[1], lse)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("implementation", [TRITON])
def test_a_row_s_bits_do_not_depend_on_other_rows(implementation: str) -> None:
    case, q = random_case(LENGTHS), queries(len(LENGTHS))
    together, *_ = run(case, q, LENGTHS, implementation=implementation)
    for row, length in enumerate(LENGTHS[:-1]):
        alone = [length if other == row else 0 for other in range(len(LENGTHS))]
        out, *_ = run(case, q, alone, implementation=implementation)
        np.testing.assert_array_equal(out[row], together[row])
