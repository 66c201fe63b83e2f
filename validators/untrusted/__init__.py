"""Readers and checks of untrusted input: paths, S3 URIs, YAML, external data, exported programs, allowlists."""
