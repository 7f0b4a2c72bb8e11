"""Help, unknown words, errors, and what `jengine --help` must not import."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from jengine import __version__
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.main import COMMANDS
from jengine.errors import CapacityError
from tests.cli.fake_llm import FakeLLM, run

HEAVY = ("jax", "jaxlib", "flax", "numpy", "transformers", "tokenizers", "torch")


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
from jengine.cli.main import COMMANDS, main
for words in [[], *([name] for name in COMMANDS)]:
    try:
        main([*words, "--help"])
    except SystemExit as leaving:
        assert leaving.code == 0, words
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, (words, found)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: jengine") == 1 + len(COMMANDS)


def test_overview_names_every_command_and_a_first_step() -> None:
    result = run(FakeLLM())
    assert result.status == 0
    assert all(f"\n  {name}" in result.out for name in COMMANDS)
    assert "jengine demo" in result.out
    assert run(FakeLLM(), "--help") == run(FakeLLM(), "help") == result


def test_version() -> None:
    assert run(FakeLLM(), "--version").out == f"jengine {__version__}\n"


def test_unknown_command_suggests_the_nearest() -> None:
    result = run(FakeLLM(), "chta", "demo")
    assert result.status == 2
    assert "unknown command 'chta'. Did you mean 'chat'?" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-tokns", "5"], "unknown flag --max-tokns. Did you mean '--max-tokens'?"),
        (["--max_tokns=5"], "Did you mean '--max-tokens'?"),
        (["--gpu", "0"], "unknown flag --gpu.\n"),
        (["--shell"], "unknown flag --shell.\n"),
        (["--help-all"], "unknown flag --help-all.\n"),
        (["--zzz"], "unknown flag --zzz."),
        (
            ["--enable_tower_connector_lora", "2"],
            "a setting of LoRA adapters that is not built yet",
        ),
        (["--max-tokens", "5x"], "max_tokens='5x': expected a positive integer"),
        (["--load-format", "pickle"], "invalid choice: 'pickle'"),
        (["--compilation-config.variants"], "--compilation-config: expected one argument"),
        (["--compilation_config.pages", "--json"], "--compilation-config: expected one argument"),
        (["--compilation-config", "[1]"], "expected a JSON object"),
        (["--max-tokens"], "expected one argument"),
    ],
)
def test_wrong_flags_end_with_status_2(words: list[str], message: str) -> None:
    llm = FakeLLM()
    result = run(llm, "generate", "demo", "hello", *words)
    assert result.status == 2
    assert "See jengine generate --help." in result.err
    assert message in result.err
    assert not llm.opened


def test_errors_are_one_line_and_status_1() -> None:
    llm = FakeLLM(scripts=[[CapacityError("no\nroom")]])
    result = run(llm, "generate", "demo", "hello", "--executor", "ray")
    assert (result.status, result.err) == (1, "jengine: error: no room\n")
    assert llm.shut_down


def test_debug_shows_where_an_error_happened() -> None:
    llm = FakeLLM(scripts=[[CapacityError("no room")]])
    result = run(llm, "generate", "demo", "hello", "--debug")
    assert result.status == 1
    assert "Traceback" in result.err
    assert result.err.endswith("jengine: error: no room\n")


def test_interrupt_ends_with_status_130() -> None:
    llm = FakeLLM(scripts=[["Hel", KeyboardInterrupt()]])
    result = run(llm, "generate", "demo", "hello", "--executor", "ray")
    assert result.status == 130
    assert result.out == "Hel\n"
    assert llm.shut_down


@pytest.mark.parametrize(("executor", "shut_down"), [("auto", False), ("ray", True)])
def test_only_workers_in_other_processes_are_shut_down(executor: str, shut_down: bool) -> None:
    # An engine in this process ends with it, which does not wait for what is being compiled.
    for words in (["generate", "demo", "hello"], ["chat", "demo", "-q", "hello"]):
        llm = FakeLLM()
        assert run(llm, *words, "--executor", executor).status == 0
        assert llm.shut_down is shut_down


LEAVING = """
import sys, threading, time
from jengine.cli import leaving

threading.Thread(target=time.sleep, args=[600]).start()
print("the last line")
leaving.leave({status})
"""


@pytest.mark.parametrize("status", [0, 3])
def test_the_process_ends_at_once_and_prints_everything(status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING.format(status=status)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (status, "the last line\n", "")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jengine", "--version"], stdout=full, timeout=60, check=False
        )
    assert done.returncode != 0


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = "import sys; from jengine.cli.main import main; sys.exit(main(['--help']))"
    command = [sys.executable, "-u", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait()


def test_python_m_jengine() -> None:
    command = [sys.executable, "-m", "jengine", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"jengine {__version__}\n"


def test_control_c_ends_the_process_while_an_engine_starts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_end_the_process():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


def test_a_program_that_handles_control_c_itself_keeps_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_end_the_process():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
