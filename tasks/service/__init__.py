"""A deployment: what starts runs, its programs, its overview, its retention.

Imported by flows.
"""
