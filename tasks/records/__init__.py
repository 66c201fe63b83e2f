"""Step 9: the run in MLflow, its result document, its report.

`tasks/watch`, `tasks/retention` and flows import it.
"""
