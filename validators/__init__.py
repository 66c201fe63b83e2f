"""Checks of jobs, data, graphs and variants, and their records. Imports neither prefect nor mlflow, and nothing of `tasks`."""
