"""One model over the devices of several processes: a launcher starts this program in each of them.

    python spmd.py [--model MODEL] [--coordinator HOST:PORT --processes N --process I [--device D]]

Under SLURM JAX finds all of it by itself. Every process gets all answers. README.md beside this
file says what to expect, and has a launcher for each scheduler.
"""

import argparse
import os
import socket
import sys
import traceback

import jax

import jengine

PROMPTS = ["Once upon a time", "Once there was a king"]


def answer(model: str) -> None:
    with jengine.LLM(model) as llm:
        params = jengine.SamplingParams(max_tokens=16, temperature=0)
        outputs = llm.generate(PROMPTS, params, use_tqdm=jax.process_index() == 0)
        if jax.process_index() == 0:
            print(llm.mesh)
            for output in outputs:
                print(output.prompt, output.outputs[0].text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 is")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int, help="this one's number")
    parser.add_argument("--device", type=int, help="of this host, where each process has one")
    given = parser.parse_args()
    # Else JAX keeps SIGTERM for itself, and a scheduler has to wait until it may send SIGKILL.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(given.coordinator, given.processes, given.process, given.device)
    me = f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
    print(me, flush=True)
    try:
        answer(given.model)
    except BaseException as error:  # noqa: BLE001 (also SystemExit)
        # A usual exit waits up to five minutes for the others, which may be waiting for this one:
        # at once, so that whoever started all of them sees it and ends them.
        traceback.print_exc()
        print(f"{me} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
