"""The startup box of `jengine serve`: models, URLs and limits."""

from __future__ import annotations

from jengine.assembly.engine import Engine
from jengine.server.app import ENDPOINTS
from jengine.server.settings import ServerSettings


def box_of(engine: Engine, settings: ServerSettings, url: str) -> str:
    root = url + settings.root_path
    lines = [f"jengine serves {', '.join(settings.served_model_name)}", "", f"API       {root}/v1"]
    if any(endpoint.path == "/" for endpoint in ENDPOINTS):
        lines.append(f"Page      {root}/")
    lines += [f"KV cache  {cache_line(engine)}", f"Programs  {programs_line(engine)}"]
    lines.append(f"Queue     {queue_line(engine, settings)}")
    width = max(map(len, lines))
    rows = [f"│ {line:<{width}} │" for line in lines]
    edge = "─" * (width + 2)
    return "\n".join([f"╭{edge}╮", *rows, f"╰{edge}╯"])


def cache_line(engine: Engine) -> str:
    """Cache size in tokens, and in requests of maximum length."""
    tokens = (engine.cache.fewest_blocks - 1) * engine.cache.block_size
    longest = engine.schedule.max_model_len
    return f"{tokens:,} tokens: {tokens / longest:.2f} requests of {longest:,} tokens at once"


def queue_line(engine: Engine, settings: ServerSettings) -> str:
    """Queue limits after which requests are refused."""
    line = f"up to {settings.queue_limit(engine.schedule.max_num_seqs):,} completions run or wait"
    if settings.max_num_queued_tokens is not None:
        line += f", with {settings.max_num_queued_tokens:,} prompt tokens waiting"
    return line


def programs_line(engine: Engine) -> str:
    """Numbers of programs compiled and still to compile."""
    counts = engine.program_counts()
    line = f"{counts.programs} compiled"
    if counts.programs_to_come:
        line += f", {counts.programs_to_come} more while requests run"
    return line
