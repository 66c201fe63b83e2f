"""What comes from others is read here: paths, addresses, YAML, programs, text that is shown."""
