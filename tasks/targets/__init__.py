"""Targets: one module each, listed in `catalog.py`. Pure: neither prefect nor mlflow; imported by the steps above."""
