"""The job: frozen settings, read from a YAML file, and the names of candidates."""
