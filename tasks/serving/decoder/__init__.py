"""A decoder read out of the graph of a variant, for the formats that hold its weights as they were judged.

Only the rooms of these formats, `gguf` and `checkpoint`, import it.
"""
