"""What must hold: the job, the data, the graph, gates and verdicts. Imports neither prefect nor mlflow, and nothing of `tasks`."""
