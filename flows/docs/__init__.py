"""Reference pages and JSON Schemas, written from the code.

Imported by `infra/docs_site.py` alone.
"""
