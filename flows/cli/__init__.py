"""The command line: one module per command group.

Imports anything below it; nothing imports it.
"""
