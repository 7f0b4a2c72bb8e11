"""`jengine doctor`: checks this machine, or whether a model fits it, and suggests a command."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import shlex
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.args import settings_of
from jengine.cli.checks.finding import Finding
from jengine.cli.flags import add_engine_flags, engine_arguments, flag_words
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "[MODEL] [flags]"
EXAMPLES = """\
examples:
  jengine doctor
  jengine doctor ./model --dtype bfloat16
  jengine doctor ./model --json
  jengine doctor ./model --check-weights
  jengine doctor --for sm_120
"""
SUBJECTS = ("versions", "gpus", "devices", "kernels", "storage", "hub", "environment", "plugins")
MODEL_FLAGS = settings_of("doctor")


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a folder, org/name, or demo")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--check-weights",
        action="store_true",
        help="read all weights and name tensors with numbers that are not finite",
    )
    parser.add_argument(
        "--for", metavar="sm_NN", dest="architecture",
        help="also try to compile kernels for this GPU, which need not be here",
    )  # fmt: skip
    add_engine_flags(parser, only=MODEL_FLAGS)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Check and print. Exit status 1 if something keeps jengine from working."""
    settings = engine_arguments(arguments)
    with interrupts_end_the_process():
        findings = [finding for subject in SUBJECTS for finding in check_machine(subject)]
        if arguments.architecture is not None:
            findings.append(check_architecture(arguments.architecture))
        command = first_command(findings)
        if arguments.model is not None:
            found, command = check_model(arguments.model, settings)
            findings += found
            if arguments.check_weights:
                values = importlib.import_module("jengine.cli.checks.values")
                findings.append(values.check(arguments.model, settings))
    failed = any(finding.level == "problem" for finding in findings)
    if failed:
        words = [word for word in ("jengine", "doctor", arguments.model) if word is not None]
        command = shlex.join([*words, *flag_words(settings)])
    show = show_json if arguments.json else show_text
    show(findings, command, failed, terminal)
    return int(failed)


def first_command(findings: list[Finding]) -> str:
    """Command to suggest on a working machine."""
    lacking = any(one.subject == "demo model" and one.level != "OK" for one in findings)
    return "jengine chat FOLDER" if lacking else "jengine demo"


def check_machine(subject: str) -> list[Finding]:
    """Findings on one subject; a failed import is one."""
    try:
        return list(importlib.import_module(f"jengine.cli.checks.{subject}").check())
    except ImportError as error:
        return [Finding("problem", subject, f"cannot be checked, an import fails: {error}")]


def check_architecture(name: str) -> Finding:
    """Finding on compiling kernels for a GPU that need not be present."""
    try:
        return importlib.import_module("jengine.cli.checks.gpus").check_for(name)
    except ImportError as error:
        return Finding("problem", "gpus", f"cannot be checked, an import fails: {error}")


def check_model(model: str, settings: dict[str, Any]) -> tuple[list[Finding], str]:
    """Findings on a model, and the command that runs it."""
    try:
        report = importlib.import_module("jengine.cli.checks.model").check(model, settings)
    except ImportError as error:
        return [Finding("problem", "model", f"cannot be checked, an import fails: {error}")], ""
    verb, prompt = ("chat", []) if report.can_chat else ("generate", ["Once upon a time"])
    flags = flag_words({**settings, **report.settings})
    return report.findings, shlex.join(["jengine", verb, model, *prompt, *flags])


def show_text(findings: list[Finding], command: str, failed: bool, terminal: Terminal) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        terminal.say(f"{finding.level:<7}  {finding.subject:<{width}}  {finding.text}")
    terminal.say()
    terminal.say(f"{'Mend the problems above, then type' if failed else 'Next, type'}: {command}")


def show_json(findings: list[Finding], command: str, failed: bool, terminal: Terminal) -> None:
    report = {
        "working": not failed,
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "next": command,
    }
    terminal.say(json.dumps(report, indent=2))
