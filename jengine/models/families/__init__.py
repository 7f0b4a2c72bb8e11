"""One file per model family: its config.json, tensor names, and differences from Llama."""
