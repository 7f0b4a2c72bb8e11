"""What processes of one engine say to each other, as bytes."""
