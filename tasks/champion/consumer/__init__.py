"""Models that a consumer loads from the registry; each file is logged alone and imports nothing of quantgate."""
