"""From the tensors of a checkpoint to parameters: which there are, and what they fill."""
