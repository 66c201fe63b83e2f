"""Step 9: the run in MLflow, its result document, its report.

Imported by `tasks/watch`, `tasks/retention` and flows.
"""
