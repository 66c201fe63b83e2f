"""A decoder of the target `ort-genai` as one GGUF file for llama.cpp, with the weights that were judged.

Only `tasks.champion.export` imports it. The library `gguf` is part of the extra `genai`, and is imported where it is used.
"""
