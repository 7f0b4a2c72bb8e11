"""Work of `jengine replay`.

In: a file and changed settings. Out: a printed report and the exit status.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.assembly.recording import check_fits, replay_settings
from jengine.cli.terminal import Terminal
from jengine.executor.local import LocalExecutor
from jengine.executor.recording import Recording, read_recording
from jengine.executor.replay import ReplayReport, replay

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

SHOWN = 10  # differences


def replay_file(
    file: str, changed: Mapping[str, Any], terminal: Terminal, open_llm: OpenLLM
) -> int:
    """Replay a file with some settings changed. Exit status 0 if every token matches."""
    recording = read_recording(Path(file))
    settings = replay_settings(recording, changed)
    with open_llm(**settings, skip_tokenizer_init=True) as llm:
        engine = llm.engine
        check_fits(recording, engine.schedule, engine.cache)
        engine.wait_until_warm()
        # Runs alone: no request is scheduled besides the recorded plans.
        report = replay(recording, LocalExecutor(engine.runners[0]))
    terminal.say(printed(recording, report))
    return int(bool(report.differences or report.problem))


def printed(recording: Recording, report: ReplayReport) -> str:
    origin = recording.origin
    lines = [
        f"Recording of {origin.model or 'a live model'} by jengine {origin.version}, written "
        f"because: {recording.reason}",
        f"{report.steps} steps run again, {report.tokens} tokens of {report.rows} requests "
        f"compared.",
    ]
    if report.left_out:
        lines.append(
            f"{report.left_out} requests are left out: the recording does not hold their beginning."
        )
    for one in report.differences[:SHOWN]:
        lines.append(
            f"  step {one.step}, row {one.row}, position {one.position}: recorded token "
            f"{one.recorded}, now {one.replayed}"
        )
    if len(report.differences) > SHOWN:
        lines.append(f"  and {len(report.differences) - SHOWN} more requests")
    if report.problem is not None:
        lines.append(f"A step failed: {report.problem}")
    elif report.differences:
        lines.append(f"{len(report.differences)} requests differ.")
    else:
        lines.append("Every token is the same.")
    return "\n".join(lines)
