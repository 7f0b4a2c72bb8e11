"""Models in GGUF files, as llama.cpp writes them: header, packed numbers, names."""
