"""Scripts for `given: make: <tool>`, one a tool, that call it as its own guide does.

Each runs in an environment of the tool's own, so it imports nothing of quantgate; `samples.py` is found beside it.
"""
