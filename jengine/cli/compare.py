"""`jengine compare`: whether the engine's numerical errors are within those of torch.

Exit status: 0 if they are, 1 if something is suspicious or wrong, 2 if nothing was compared. With
`--against "jengine ..."` configurations of the engine are compared, without a verdict.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.args import settings_of
from jengine.assembly.settings.flags import flag_of
from jengine.cli import compare_configurations as configurations
from jengine.cli.flags import add_engine_flags, engine_arguments, flag_words
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError, JengineError

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM
    from jengine.research.comparison import Comparison
    from jengine.research.options import Options

USAGE = "MODEL [flags]"
EXAMPLES = """\
examples:
  jengine compare ./model --report report.html
  jengine compare ./model --dtype bfloat16 --torch-python ~/torch/bin/python --json compare.json
  jengine compare ./model --save-bundle ./bundle         (where torch is)
  jengine compare ./model --against ./bundle             (where it is not)
  jengine compare ./model --quantization int4 --against "jengine --dtype float32"
  jengine compare ./model --against "jengine --dtype float32" --each schemes --speed
  jengine compare ./model --against jengine --each "--tensor-parallel-size 2" --report sweep.html
"""
ENGINE_FLAGS = settings_of("compare")


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, org/name, or demo")
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--against", metavar="WHAT", default="torch",
        help="torch, the folder of a saved bundle, or jengine with other flags in one word:"
        " 'jengine --dtype float32'",
    )  # fmt: skip
    group.add_argument(
        "--each", metavar="FLAGS", action="append", default=[],
        help="a configuration to compare with that of --against 'jengine ...', may be given several"
        " times; 'schemes' stands for bfloat16 and every scheme of weights and cache",
    )  # fmt: skip
    group.add_argument(
        "--speed", action="store_true", help="also tokens per second of one request, by each"
    )
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="prompts, one per line, or JSON in a .jsonl file [built in]",
    )
    group.add_argument(
        "--new-tokens", metavar="N", type=int, default=24, help="greedy tokens per prompt [24]"
    )
    group.add_argument(
        "--layers", metavar="LIST", default="all",
        help="layers or tap points to compare, such as 0-3,7,norm or layers.*.mlp [all]",
    )  # fmt: skip
    group.add_argument(
        "--no-sweeps", dest="sweeps", action="store_false",
        help="do not compare jengine with itself (batches, chunks, decoding, cached prompts)",
    )  # fmt: skip
    group.add_argument("--report", metavar="FILE", help="write a page with pictures, as HTML")
    group.add_argument("--json", metavar="FILE", help="write all figures as JSON")
    group.add_argument(
        "--save-bundle", metavar="FOLDER", help="keep what torch computed, to compare again"
    )
    group.add_argument(
        "--torch-python", metavar="PATH", help="a Python with torch and transformers [this one]"
    )
    group.add_argument(
        "--torch-device", metavar="NAME", default="cpu", help="where torch runs: cpu or cuda [cpu]"
    )
    add_engine_flags(parser, only=ENGINE_FLAGS)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Compare, print and write. Errors end with status 2, as they are no verdict."""
    try:
        settings = engine_arguments(arguments)
        check_outputs(arguments)
        if configurations.is_wanted(arguments):
            return configurations.compare(
                arguments, settings, options_of(arguments, settings, terminal), ENGINE_FLAGS,
                terminal, open_llm,
            )  # fmt: skip
        comparison = compare(arguments, settings, terminal, open_llm)
        show(comparison, terminal)
        write(comparison, arguments, terminal)
    except JengineError as error:
        if arguments.debug:
            traceback.print_exc(file=terminal.stderr)
        terminal.note(f"jengine compare: error: {' '.join(str(error).split())}")
        return 2
    return int(not comparison.passed)


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for output files that cannot be written, before the comparison runs."""
    for flag in ("report", "json"):
        file = getattr(arguments, flag)
        if file is not None and (Path(file).is_dir() or not Path(file).absolute().parent.is_dir()):
            raise ConfigError(f"--{flag} {file!r}: expected a file in a folder that exists.")


def compare(
    arguments: argparse.Namespace, settings: dict[str, Any], terminal: Terminal, open_llm: OpenLLM
) -> Comparison:
    """Compare with torch; imports jax only now."""
    research = importlib.import_module("jengine.research.compare")
    options = options_of(arguments, settings, terminal)
    return research.compare_folder(arguments.model, options, settings, open_llm)


def options_of(
    arguments: argparse.Namespace, settings: dict[str, Any], terminal: Terminal
) -> Options:
    """Options of either kind of comparison."""
    research = importlib.import_module("jengine.research.options")
    prompts = None
    if arguments.prompts is not None:
        readers = importlib.import_module("jengine.research.prompts")
        prompts = readers.read_prompts(Path(arguments.prompts))
    return research.Options(
        against=arguments.against,
        prompts=prompts,
        new_tokens=arguments.new_tokens,
        points=tap_patterns(arguments.layers),
        sweeps=arguments.sweeps,
        torch_python=arguments.torch_python,
        torch_device=arguments.torch_device,
        save_bundle=arguments.save_bundle,
        command=command_line(arguments, settings),
        note=terminal.note,
    )


def tap_patterns(text: str) -> list[str]:
    """Tap point patterns from layer numbers, ranges and names."""
    patterns: list[str] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if part.strip() == "all":
            patterns.append("*")
        elif first.isdecimal() and (last.isdecimal() or not dash):
            numbers = range(int(first), int(last or first) + 1)
            if not numbers:
                raise ConfigError(f"--layers {part.strip()!r}: the range is empty.")
            patterns += [f"layers.{number}.*" for number in numbers]
        else:
            patterns.append(part.strip())
    return patterns


def command_line(arguments: argparse.Namespace, settings: dict[str, Any]) -> str:
    words = ["jengine", "compare", arguments.model]
    defaults = {"against": "torch", "new_tokens": 24, "layers": "all", "torch_device": "cpu"}
    for name in ("against", "prompts", "new_tokens", "layers", "torch_python", "torch_device"):
        value = getattr(arguments, name)
        if value != defaults.get(name):
            words += [flag_of(name), str(value)]
    for each in arguments.each:
        words += ["--each", each]
    words += ["--speed"] * arguments.speed
    if not arguments.sweeps:
        words.append("--no-sweeps")
    return shlex.join([*words, *flag_words(settings)])


def show(comparison: Comparison, terminal: Terminal) -> None:
    """Print the verdict and the tables."""
    found = comparison.results
    terminal.say(found.verdict)
    terminal.say()
    width = max(len(point.name) for point in found.points)
    terminal.say(f"{'tensor':<{width}}  {'jengine':>9}  {'torch':>9}  {'ratio':>6}  ")
    for point in found.points:
        row = point.summary()
        terminal.say(
            f"{point.name:<{width}}  {row['ours_relative']:>9.2e}  {row['torch_relative']:>9.2e}  "
            f"{point.ratios.worst:>6.2f}  {point.band.label}"
        )
    terminal.say()
    for who, result in (("torch", found.peer), ("jengine", found.ours)):
        shares = ", ".join(f"top {k} {share:.1%}" for k, share in result.agreement.items())
        terminal.say(
            f"{who:<8} from the truth: KL mean {result.kl.mean():.2e}, max {result.kl.max():.2e}; "
            f"agreement {shares}"
        )
    for sweep in found.sweeps:
        terminal.say(
            f"{sweep.name:<11} {sweep.band.label}: largest difference of a logit "
            f"{sweep.max_abs:.1e} ({sweep.meaning})"
        )
    left = [one for one in found.continuations if one.ours_from_truth is not None]
    steps = len(found.continuations[0].truth)
    terminal.say(
        f"greedy: {len(found.continuations) - len(left)} of {len(found.continuations)} "
        f"prompts follow the truth for {steps} tokens"
    )
    for one in left:
        parting = one.ours_from_truth
        assert parting is not None
        tie = "a tie within the noise" if parting.tie else "no tie"
        where = f"prompt {one.prompt} leaves it at step {parting.step}"
        terminal.say(f"  {where}, margin {parting.margin:.2e}: {tie}")


def write(comparison: Comparison, arguments: argparse.Namespace, terminal: Terminal) -> None:
    if arguments.report is not None:
        comparison.save_report(arguments.report)
        terminal.note(f"Wrote {arguments.report}.")
    if arguments.json is not None:
        comparison.save_json(arguments.json)
        terminal.note(f"Wrote {arguments.json}.")
    if arguments.save_bundle is not None:
        terminal.note(f"Kept the reference in {arguments.save_bundle}.")
