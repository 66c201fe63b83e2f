"""Loader of versions in OpenVINO. Runs and measuring processes import it; consumers get this folder alone."""
