"""Where a variant runs: sessions and coverage. Pure: neither prefect nor mlflow."""
