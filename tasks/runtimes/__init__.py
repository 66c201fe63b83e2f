"""Runtimes of variants: sessions, engines and coverage. Pure: neither prefect nor mlflow."""
