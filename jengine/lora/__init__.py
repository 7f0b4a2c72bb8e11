"""LoRA adapters: files of PEFT to low-rank parts of our weights."""
