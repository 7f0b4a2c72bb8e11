"""The traced step: its functions, state and packed input."""
