"""A decoder of the target `ort-genai` as a checkpoint of transformers in few bits, with the weights that were judged.

vLLM loads the format compressed-tensors, and TensorRT-LLM that of ModelOpt. Only `tasks.champion.export` imports this room.
"""
