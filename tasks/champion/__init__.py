"""Step 8: the champion in the registry: promotion, approval, rollback, export.

`tasks/records`, `tasks/watch` and the layers above them import it.
"""
