"""GGUF files: header, block formats, tensor names."""
