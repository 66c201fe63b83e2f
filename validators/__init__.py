"""What must hold: the job, the data, the graph, gates and verdicts. Pure: neither prefect nor mlflow."""
