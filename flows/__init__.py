"""What a person or a schedule triggers."""
