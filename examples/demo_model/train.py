"""Trains the demo model, or a sibling of another size, and writes it as a Hugging Face folder.

In: a size and an output folder. Out: orbax checkpoints while it runs, then the finished model in
`model/` below it, its card filled with measured figures. Must not know: how a step is computed.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from orbax.checkpoint import v1 as ocp
from tokenizers import Tokenizer
from tqdm import tqdm

from examples.demo_model import cases
from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.evaluate import measure, plain_generator, table, write_card
from examples.demo_model.export import export
from examples.demo_model.trainer import SIZES, Plan, Trainer
from jengine.demo import model_path

__all__ = ["train"]

REPORT_EVERY = 10
CHECKPOINT_EVERY = 250
KEPT_CHECKPOINTS = 3


def train(plan: Plan, folder: Path, *, resume: bool = False, start: Path | None = None) -> Trainer:
    """Run the plan, with checkpoints and a progress bar, and return the trainer at its end.

    A run begins with random parameters, or with those of the finished model in `start`.
    """
    tokenizer = prepared_tokenizer(folder)
    trainer = Trainer(plan, tokenizer)
    if start is not None:
        trainer.start_from(start)
    keep = ocp.training.preservation_policies.LatestN(KEPT_CHECKPOINTS)
    with ocp.training.Checkpointer(
        str((folder / "checkpoints").resolve()),
        preservation_policy=keep,  # pyrefly: ignore[bad-argument-type]
    ) as checkpointer:
        if resume:
            trainer.restore(checkpointer)
        elif checkpointer.latest is not None:
            raise SystemExit(
                f"{folder} holds a run at step {checkpointer.latest.step}. "
                "Give --resume to continue it, or another --out."
            )
        run_steps(trainer, checkpointer)
    return trainer


def run_steps(trainer: Trainer, checkpointer: ocp.training.Checkpointer) -> None:
    """Train to the end of the plan, showing losses and speed."""
    steps = trainer.plan.total
    bar = tqdm(total=steps, initial=trainer.step, unit="step", mininterval=5.0)
    shown: dict[str, str] = {}
    recent: list[float] = []
    since = time.monotonic()
    with bar:
        while trainer.step < steps:
            recent.append(trainer.advance())
            bar.update()
            at_end = trainer.step == steps
            if trainer.step % REPORT_EVERY == 0 or at_end:
                seconds, since = time.monotonic() - since, time.monotonic()
                speed = len(recent) * trainer.plan.tokens_per_step / seconds
                shown.update({"loss": f"{np.mean(recent):.4f}", "tokens/s": f"{speed:.0f}"})
                recent = []
            if trainer.step % CHECKPOINT_EVERY == 0 or at_end:
                shown["held out"] = f"{trainer.held_out_loss():.4f}"
                trainer.save(checkpointer)
                since = time.monotonic()
            bar.set_postfix(shown, refresh=False)


def prepared_tokenizer(folder: Path) -> Tokenizer:
    """The run's tokenizer: the shipped one, so that siblings share it, or a fresh one."""
    if (folder / "tokenizer.json").exists():
        return demo_tokenizer.load(folder)
    if (model_path() / "tokenizer.json").exists():
        tokenizer = demo_tokenizer.load(model_path())
    else:
        tokenizer = demo_tokenizer.train(demo_tokenizer.training_texts())
    demo_tokenizer.save(tokenizer, folder)
    return tokenizer


def main() -> None:
    """Train a model, export it and measure it on held-out prompts."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_model.train", description=main.__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--steps", type=int, help=f"default {Plan.steps}")
    parser.add_argument("--refresher", type=int, default=Plan.refresher, help="steps after those")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="MODEL",
        help="begin with the weights of this finished model; --steps is then 0 if not given",
    )
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    given = parser.parse_args()
    steps = (0 if given.start else Plan.steps) if given.steps is None else given.steps
    plan = Plan(given.size, steps, seed=given.seed, refresher=given.refresher)
    trainer = train(plan, given.out, resume=given.resume, start=given.start)

    folder = given.out / "model"
    export(trainer, folder)
    figures = measure(plain_generator(folder), cases.suites())
    write_card(folder / "README.md", figures)
    print(table(figures))


if __name__ == "__main__":
    main()
