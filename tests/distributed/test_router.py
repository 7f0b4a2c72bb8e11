"""Which replica a request goes to: the rule, its bound, and what is counted as load."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jengine.distributed.router import UNEVEN, Placed, Router, choose
from jengine.outputs import TokenDelta

BLOCK = 4


def delta(name: str, tokens: int = 0, reason: str | None = None) -> TokenDelta:
    return TokenDelta(request_id=name, token_ids=[1] * tokens, finish_reason=reason)


def hashes(prefix: str, blocks: int) -> list[bytes]:
    return [f"{prefix}{index}".encode() for index in range(blocks)]


def place(placing: Router, name: str, tokens: int, blocks: Sequence[bytes] = ()) -> int:
    chosen = placing.replica_for([0] * len(placing.loads), blocks)
    placing.enter(name, Placed(chosen, tokens, blocks))
    return chosen


@pytest.mark.parametrize(
    ("loads", "hits", "expected"),
    [
        ([0, 0, 0], [0, 0, 0], 0),
        ([5, 3, 3], [0, 0, 0], 1),
        ([5, 3, 4], [0, 0, 32], 2),
        ([35, 3, 4], [32, 0, 16], 0),  # as much ahead as the prefix saves
        ([36, 3, 4], [32, 0, 16], 2),
        ([36, 3, 20], [32, 0, 16], 1),
        ([1000, 1200, 1100], [0, 0, 0], 0),
        ([1000, 1250, 1100], [0, 0, 0], 0),
        ([1000, 1266, 1100], [0, 16, 0], 1),  # a quarter of the least besides
        ([1000, 1267, 1100], [0, 16, 0], 0),
        ([7, 7, 7], [16, 32, 32], 1),
    ],
)
def test_the_longest_prefix_that_is_worth_its_queue(
    loads: list[int], hits: list[int], expected: int
) -> None:
    assert choose(loads, hits) == expected


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 500)), min_size=1, max_size=8),
)
def test_no_replica_leads_by_more_than_the_bound(pairs: list[tuple[int, int]]) -> None:
    loads, hits = [load for load, _ in pairs], [hit for _, hit in pairs]
    chosen, least = choose(loads, hits), min(loads)
    assert loads[chosen] <= least + hits[chosen] + least // UNEVEN
    if not any(hits):
        assert loads[chosen] == least
    # Nobody as free as the one chosen has more of the prompt.
    assert all(hits[i] <= hits[chosen] for i, load in enumerate(loads) if load <= loads[chosen])


@settings(deadline=None)
@given(
    replicas=st.integers(2, 6),
    shared=st.integers(1, 60),
    rests=st.lists(st.integers(1, 200), min_size=1, max_size=60),
)
def test_prompts_that_begin_alike_do_not_pile_up(
    replicas: int, shared: int, rests: list[int]
) -> None:
    """All prompts begin with the same text, and no answer ends."""
    placing = Router(replicas, BLOCK)
    prefix = hashes("system", shared)
    for number, rest in enumerate(rests):
        place(placing, str(number), shared * BLOCK + rest, prefix)
        longest = shared * BLOCK + max(rests)
        least = min(placing.loads)
        assert max(placing.loads) <= least + least // UNEVEN + shared * BLOCK + longest
    assert sum(placing.loads) == sum(rests) + len(rests) * shared * BLOCK
    if len(rests) >= 3 * replicas and max(rests) <= shared * BLOCK:
        assert min(placing.loads) > 0


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.integers(1, 9), st.booleans()),
        max_size=40,
    )
)
def test_load_is_the_tokens_of_unfinished_requests(
    moves: list[tuple[str, int, int, bool]],
) -> None:
    placing = Router(3, BLOCK)
    known: dict[str, tuple[int, int]] = {}
    for number, (prefix, blocks, tokens, ends) in enumerate(moves):
        name = str(number)
        chosen = place(placing, name, blocks * BLOCK + tokens, hashes(prefix, blocks))
        placing.note(delta(name, tokens))
        known[name] = (chosen, blocks * BLOCK + 2 * tokens)
        if ends:
            ended = next(iter(known))
            placing.note(delta(ended, 1, "stop"))
            del known[ended]
            assert ended not in placing and placing.replica_of(ended) is None
        expected = [sum(n for at, n in known.values() if at == i) for i in range(3)]
        assert placing.loads == expected
        assert all(placing.replica_of(name) == at for name, (at, _) in known.items())
    placing.clear()
    assert placing.loads == [0, 0, 0] and not any(placing._coming)


def test_answers_to_one_prompt_stay_together_as_far_as_the_bound_lets_them() -> None:
    placing = Router(4, BLOCK)
    prompt = hashes("one", 10)
    assert place(placing, "a0", 41, prompt) == 0
    # Nobody idles while answers wait, and then they stay where their prompt is.
    assert [place(placing, f"x{i}", 41, hashes(f"x{i}", 10)) for i in range(3)] == [1, 2, 3]
    assert [place(placing, f"a{i}", 41, prompt) for i in (1, 2, 3)] == [0, 0, 1]
    for name in ("a0", "a1", "a2", "a3"):
        placing.note(delta(name, 0, "abort"))
    # What has ended is expected nowhere: only caches know of it.
    assert placing.loads == [0, 41, 41, 41]
    assert placing.replica_for([0, 0, 40, 0], prompt) == 0
    assert placing.replica_for([0, 0, 41, 0], prompt) == 2
