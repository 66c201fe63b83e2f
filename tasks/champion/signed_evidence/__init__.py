"""Strict reading of evidence bundles, for runs, `quantgate verify` and consumers, which get this package with each version.

It imports the standard library, PyYAML, which MLflow needs, and cryptography where it checks a signature; nothing of quantgate.
"""
