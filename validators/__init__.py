"""What must hold: job, data, graphs, gates and verdicts. Imports neither prefect nor mlflow, and nothing of `tasks`."""
