"""Maps checkpoint tensors to parameters."""
