"""The ledger adds up, and prints."""

from __future__ import annotations

import json
from dataclasses import replace

from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.sampling.features import SamplingFeatures


def example() -> CompileLedger:
    ledger = CompileLedger(warm_up_seconds=2.5)
    decode = LedgerEntry(Bucket(8, 0, 4), Features(), 1.25, 2_000_000, 10)
    random = Features(SamplingFeatures(random=True))
    late = LedgerEntry(Bucket(8, 64, 4), random, 0.5, 0, 20, after_warm_up=True)
    for tokens in (8, 4, 6):
        decode.count(tokens)
    ledger.add(decode)
    ledger.add(late)
    return ledger


def test_padding_is_what_was_computed_in_vain() -> None:
    decode, unused = example().entries.values()
    assert (decode.hits, decode.useful_tokens) == (3, 18)
    assert decode.padded_share == 0.25
    assert unused.padded_share == 0.0


def test_prefill_padding_is_that_of_prompts() -> None:
    ledger = example()
    assert ledger.prefill_padding == 0.0
    mixed = list(ledger.entries.values())[1]
    mixed.count(56, prompt_tokens=48)
    mixed.count(65, prompt_tokens=64)
    assert ledger.prefill_padding == 16 / 128


def test_compiles_after_warm_up_are_counted() -> None:
    assert example().compiles_after_warm_up == 1


def test_replicas_share_an_entry() -> None:
    ledger = example()
    decode = next(iter(ledger.entries.values()))
    ledger.add(LedgerEntry(decode.bucket, decode.features, 0.25, 2_000_000, 10))
    late = LedgerEntry(Bucket(2, 0, 4), Features(), 1.0, 0, 0, after_warm_up=True)
    for _ in range(3):
        ledger.add(replace(late))
    assert (decode.seconds, decode.compiles, decode.hits) == (1.5, 2, 3)
    assert len(ledger.entries) == 3 and ledger.compiles_after_warm_up == 1 + 3
    assert "3 programs compiled 6 times, 5.0 s" in str(ledger)


def test_it_prints_one_line_a_program_and_a_sum() -> None:
    head, decode, late, foot = str(example()).splitlines()
    assert head.split() == ["bucket", "features", "seconds", "temp", "MB", "hits", "padded"]
    assert decode.split() == ["8+0x4", "greedy", "1.25", "2.0", "3", "25.0%"]
    assert late.endswith("compiled late") and not decode.endswith("late")
    assert foot.startswith("2 programs, 1.8 s of compiling, several at once")


def test_variants_that_warm_up_leaves_out_are_named() -> None:
    ledger = example()
    assert ledger.counts.on_first_use == () and "first use" not in str(ledger)
    ledger.on_first_use = (Features(SamplingFeatures(random=True, logprobs=5)),)
    assert ledger.counts.on_first_use == ("random+logprobs=5",)
    assert str(ledger).splitlines()[-1] == "compiled on first use: random+logprobs=5"


def test_it_goes_into_json() -> None:
    decode, late = json.loads(json.dumps(example().as_dicts()))
    assert decode["bucket"] == "8+0x4" and decode["features"] == "greedy"
    assert decode["padded_share"] == 0.25
    assert late["after_warm_up"] is True


def test_what_is_to_come_is_named_until_it_is_there() -> None:
    ledger, later = example(), (Bucket(2, 0, 4), Features())
    ledger.expect([later])
    ledger.note_asked(later)
    ledger.expect([later])
    assert ledger.asked_for(later) == 1
    assert str(ledger).splitlines()[-2].split() == ["2+0x4", "greedy", "not", "compiled", "yet"]
    ledger.add(LedgerEntry(*later, 1.0, 0, 0))
    ledger.note_asked(later)
    assert not ledger.to_come and ledger.asked_for(later) == 0
    assert "not compiled yet" not in str(ledger)
