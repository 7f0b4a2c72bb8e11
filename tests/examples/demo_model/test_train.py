"""A tiny sibling learns, and a resumed run continues bit for bit."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from examples.demo_model import corpus
from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.batches import batch_at, encode
from examples.demo_model.export import card, export
from examples.demo_model.train import train
from examples.demo_model.trainer import Plan, Trainer, schedule
from jengine.models.parameter import named_parameters
from jengine.weights.safetensors_io import load_model

PLAN = Plan(
    size="tiny",
    steps=16,
    refresher=8,
    tokens_per_step=256,
    warmup=4,
    lengths=((0.0, 32),),
    refresher_lengths=((0.0, 32),),
)


@pytest.fixture(scope="module")
def small_tokenizer():
    return demo_tokenizer.train(list(demo_tokenizer.training_texts(300)), vocabulary_size=512)


@pytest.fixture(scope="module")
def trained(small_tokenizer, tmp_path_factory):
    """A run to its end, with a checkpoint half-way."""
    folder = tmp_path_factory.mktemp("run")
    trainer = Trainer(PLAN, small_tokenizer)
    losses = []
    with ocp.training.Checkpointer(folder) as checkpointer:
        while trainer.step < PLAN.total:
            if trainer.step == PLAN.total // 2:
                trainer.save(checkpointer)
            losses.append(trainer.advance())
    return folder, trainer, losses


@pytest.mark.slow
def test_loss_goes_down(trained):
    _, trainer, losses = trained
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
    assert np.isfinite(trainer.held_out_loss())


@pytest.mark.slow
def test_resumed_run_continues_bit_for_bit(trained, small_tokenizer):
    folder, trainer, losses = trained
    resumed = Trainer(PLAN, small_tokenizer)
    with ocp.training.Checkpointer(folder) as checkpointer:
        resumed.restore(checkpointer)
    assert resumed.step == PLAN.total // 2
    again = [resumed.advance() for _ in range(PLAN.total - resumed.step)]
    assert again == losses[PLAN.total // 2 :]
    for ours, theirs in zip(
        jax.tree.leaves(resumed.state), jax.tree.leaves(trainer.state), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_command_refuses_to_overwrite_a_run(small_tokenizer, tmp_path: Path):
    demo_tokenizer.save(small_tokenizer, tmp_path)
    plan = Plan(size="tiny", steps=1, refresher=0, tokens_per_step=64, lengths=((0.0, 32),))
    assert train(plan, tmp_path).step == 1
    with pytest.raises(SystemExit, match="--resume"):
        train(plan, tmp_path)
    assert train(plan, tmp_path, resume=True).step == 1


@pytest.mark.slow
def test_a_run_begins_with_a_finished_model(trained, small_tokenizer, tmp_path: Path):
    _, trainer, _ = trained
    first, second = tmp_path / "first", tmp_path / "second"
    export(trainer, first)
    demo_tokenizer.save(small_tokenizer, second)
    plan = replace(PLAN, steps=0, refresher=4, refresher_rate=0.0)
    further = train(plan, second, start=first)
    assert further.step == 4
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), trainer.state["parameters"])
    for name, leaf in further.state["parameters"].items():
        np.testing.assert_allclose(leaf, rounded[name].astype(jnp.float32), err_msg=name)
    assert f"--steps 0 --refresher 4 --from {first}" in card(further)
    with pytest.raises(SystemExit, match="no model of size 'small'"):
        Trainer(Plan(size="small"), small_tokenizer).start_from(first)


@pytest.mark.slow
def test_export_reads_back_as_the_same_model(trained, tmp_path: Path):
    _, trainer, _ = trained
    export(trainer, tmp_path)
    exported = dict(named_parameters(load_model(tmp_path)))
    for path, leaf in named_parameters(trainer.model(trainer.state["parameters"])):
        rounded = leaf.get_value().astype(jnp.bfloat16)
        np.testing.assert_array_equal(exported[path].get_value(), rounded)
    assert f"{trainer.parameter_count:,}" in (tmp_path / "README.md").read_text()


def test_batches_depend_on_seed_and_step_only(small_tokenizer):
    first = batch_at(small_tokenizer, 0, 3, 4, 32)
    again = batch_at(small_tokenizer, 0, 3, 4, 32)
    other = batch_at(small_tokenizer, 0, 4, 4, 32)
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert not np.array_equal(first.tokens, other.tokens)


def test_rows_begin_with_a_document_and_weigh_what_follows(small_tokenizer):
    batch = batch_at(small_tokenizer, 0, 0, 1, 64)
    ids, counts = encode(small_tokenizer, next(corpus.documents("0/0")))
    taken = min(len(ids), 65)
    np.testing.assert_array_equal(batch.tokens[0, :taken], ids[:taken])
    np.testing.assert_allclose(batch.weights[0, : taken - 1], counts[1:taken])


def test_plan_lengthens_rows_and_keeps_the_number_of_tokens():
    plan = Plan(steps=100, refresher=100, tokens_per_step=1024)
    lengths = [plan.shape_at(step) for step in range(plan.total)]
    assert set(lengths) == {(8, 128), (4, 256), (2, 512)}
    assert lengths[0] == (8, 128)
    assert lengths[99] == lengths[-1] == (2, 512)


def test_learning_rate_rises_and_falls_twice():
    plan = Plan(steps=100, refresher=50, warmup=10)
    rate = schedule(plan)
    assert [float(rate(step)) for step in (0, 100, 150)] == [0.0, 0.0, 0.0]
    assert float(rate(50)) == pytest.approx(plan.learning_rate)
    assert float(rate(110)) == pytest.approx(plan.refresher_rate)
