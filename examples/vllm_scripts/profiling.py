"""Record a trace of some answers."""

import os
import tempfile

from jengine import LLM, SamplingParams


def main() -> None:
    folder = tempfile.mkdtemp(prefix="profile-")
    llm = LLM(
        model=os.environ.get("MODEL", "demo"),
        max_model_len=256,
        profiler_config={"profiler": "torch", "torch_profiler_dir": folder},
    )
    llm.start_profile()
    outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=4))
    llm.stop_profile()
    print(f"{len(outputs[0].outputs[0].token_ids)} tokens")
    files = sum(len(names) for _, _, names in os.walk(folder))
    print(f"files written: {files}")


if __name__ == "__main__":
    main()
