"""The command line: one module a command group.

Imports anything below it; nothing imports it.
"""
