"""One model over the devices of several hosts: start this same program on each of them.

    python two_hosts.py COORDINATOR:PORT PROCESSES PROCESS [MODEL]

Every process gets all answers. README.md beside this file says what to expect.
"""

import sys

import jax

import jengine

coordinator, processes, process, *model = sys.argv[1:]
jax.distributed.initialize(coordinator, int(processes), int(process))

PROMPTS = ["Once upon a time", "Once there was a king"]

with jengine.LLM(*(model or ["demo"])) as llm:
    params = jengine.SamplingParams(max_tokens=16, temperature=0)
    outputs = llm.generate(PROMPTS, params, use_tqdm=jax.process_index() == 0)
    if jax.process_index() == 0:
        print(llm.mesh)
        for output in outputs:
            print(output.prompt, output.outputs[0].text)
