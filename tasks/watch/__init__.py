"""The watch over a champion after its promotion.

Imported by flows.
"""
