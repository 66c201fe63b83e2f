"""Files, the store of finished work, and locks between processes; independent of flows and the registry."""
