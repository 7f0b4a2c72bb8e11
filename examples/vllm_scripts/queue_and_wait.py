"""Queue prompts in two phases, with engine arguments as vLLM's scripts write them down."""

import os

from jengine import LLM, EngineArgs, SamplingParams
from jengine.outputs import RequestOutput


def main() -> None:
    args = EngineArgs(
        model=os.environ.get("MODEL", "demo"),
        tokenizer_mode="auto",
        dtype="auto",
        kv_cache_dtype="auto",
        max_model_len=256,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        gpu_memory_utilization=0.9,
        enable_lora=False,
        enable_chunked_prefill=True,
        trust_remote_code=False,
        seed=0,
    )
    llm = LLM.from_engine_args(args)
    params = SamplingParams(temperature=0.0, max_tokens=6)
    ids = llm.enqueue(["Once upon a time", "The little dog"], params, use_tqdm=False)
    ids += llm.enqueue_chat([{"role": "user", "content": "Hello!"}], params, use_tqdm=False)
    outputs = llm.wait_for_completion(RequestOutput, use_tqdm=False)
    print(f"in order: {[output.request_id for output in outputs] == ids}")
    print(f"devices: {llm.get_world_size()}")
    for output in outputs:
        print(f"{output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
