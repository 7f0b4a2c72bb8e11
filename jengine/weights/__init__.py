"""Model folders: reading, checking and writing weights and the settings beside them."""
