"""Loader of versions in TorchInductor. Runs and measuring processes import it; consumers get this folder alone."""
