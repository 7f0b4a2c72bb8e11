"""Random mixes: one answer against the same of a plain engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from jengine import RequestOutput
from jengine.logprobs import StepLogprobs


def compare(found: RequestOutput, expected: RequestOutput, may_be_cut: bool, where: str) -> None:
    """An answer against the plain one, of which one that was aborted is the beginning."""
    for ours, theirs in zip(found.outputs, expected.outputs, strict=True):
        count = len(ours.token_ids)
        cut = may_be_cut and ours.finish_reason == "abort"
        assert ours.token_ids == theirs.token_ids[: count if cut else None], where
        if not cut:
            assert (ours.finish_reason, ours.stop_reason) == (
                theirs.finish_reason,
                theirs.stop_reason,
            ), where
            assert ours.text == theirs.text, where
        close(read(ours.logprobs), read(theirs.logprobs)[:count], where)
    if found.prompt_logprobs is not None:
        close(read(found.prompt_logprobs), read(expected.prompt_logprobs), where)
    for name, values in (found.captured or {}).items():
        theirs = expected.captured[name]
        np.testing.assert_allclose(values, theirs, atol=2e-3, rtol=1e-3, err_msg=f"{name} {where}")


def read(tables: Any) -> list[dict[int, float]]:
    """Log-probabilities by token, position by position; none for the first token of a prompt."""
    if isinstance(tables, StepLogprobs):
        rows = zip(tables.ids.tolist(), tables.values.tolist(), strict=True)
        return [dict(zip(ids, values, strict=True)) for ids, values in rows]
    return [{key: one.logprob for key, one in table.items()} for table in tables or [] if table]


def close(found: list[dict[int, float]], expected: list[dict[int, float]], where: str) -> None:
    """The same positions, and near values for the tokens that both have."""
    assert len(found) == len(expected), where
    for ours, theirs in zip(found, expected, strict=True):
        both = sorted(ours.keys() & theirs.keys())
        assert both, where
        np.testing.assert_allclose(
            [ours[key] for key in both], [theirs[key] for key in both], atol=2e-3, err_msg=where
        )
