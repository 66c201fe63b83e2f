"""Watch over a champion after its promotion.

Imported by flows.
"""
