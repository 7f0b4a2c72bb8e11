"""Routes of one file each."""
