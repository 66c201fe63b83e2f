"""The service: it starts runs, keeps programs alive, gives an overview, and deletes old variants and files.

Imported by flows.
"""
