"""Mathematics of a step as functions on arrays; parameters are passed in."""
