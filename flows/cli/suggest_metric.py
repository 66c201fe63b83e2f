"""The metric that the names, types and shapes of a model's inputs and outputs suggest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from validators.samples.datasets import TensorSpec

# A rank-3 output with at least this many values on its last axis is over a vocabulary rather than over tags.
_VOCABULARY = 1000
_CLASSES = 2000
# Types of token ids. Smaller integers are pixels or bytes.
TOKENS = ("int32", "int64")
_THRESHOLD = "metric_threshold: 0.5  # CHECK: the probability above which a value means yes"
_TEXT = 'text: {decoding: ctc, vocabulary: vocabulary.txt, separator: ""}  # CHECK: a file with one token per line, blank first'


# A metric, the reason for it, and the further lines of the job that it needs.
Suggestion = tuple[str, str, tuple[str, ...]]


def suggest_metric(
    outputs: Sequence[TensorSpec], inputs: Sequence[TensorSpec] = (), probabilities: Collection[str] = ()
) -> Suggestion:
    """Return the metric that the first output suggests; `probabilities` names the outputs of a sigmoid.

    >>> suggest_metric([TensorSpec("logits", "float32", ("batch", 4))])[0]
    'accuracy'
    >>> suggest_metric([TensorSpec("logits", "float32", ("batch", "length", 32000))])[0]
    'perplexity'
    >>> suggest_metric([TensorSpec("score", "float32", ("batch", 1))])[0]
    'r2'
    >>> suggest_metric([TensorSpec("mask", "float32", ("batch", 3, 64, 64))])[0]
    'sqnr'
    """
    if not outputs:
        return "sqnr", "the outputs are unknown; sqnr needs no labels", ()
    shape, first = outputs[0].shape, outputs[0]
    last = shape[-1] if shape else None
    if first.name in probabilities:
        found = _of_probabilities(first)
        if found is not None:
            return found
    if len(shape) == 3 and isinstance(last, int) and last >= _VOCABULARY:
        if any(spec.dtype in TOKENS for spec in inputs) or not inputs:
            return "perplexity", f"{first} looks like scores over a vocabulary", ()
        return "cer", f"{first} looks like text read from a picture or a sound; for words, use wer", (_TEXT,)
    if len(shape) == 1 or (len(shape) == 2 and last == 1):
        return "r2", f"{first} looks like one value per sample; for a yes or no, use f1_binary", ()
    if len(shape) == 2 and isinstance(last, int) and last <= _CLASSES:
        return "accuracy", f"{first} looks like scores of {last} classes; for an embedding, use cosine", ()
    why = f"{first} suggests no metric; sqnr needs no labels, but does not measure quality on the task"
    return "sqnr", why, ()


def scores_first(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs, those of scores before those of indices: classifiers of tables answer a label and its scores.

    >>> [spec.name for spec in scores_first([TensorSpec("label", "int64", ("n",)), TensorSpec("p", "float32", ("n", 2))])]
    ['p', 'label']
    """
    return sorted(outputs, key=lambda spec: not spec.dtype.startswith("float"))


def _of_probabilities(output: TensorSpec) -> Suggestion | None:
    """Return the metric for yes or no: of a sample, of each of its classes, or of each pixel; None for other shapes."""
    shape = output.shape
    if len(shape) == 1 or shape[1:] == (1,):
        return "f1_binary", f"{output} looks like the probability of a yes", (_THRESHOLD,)
    if len(shape) == 2 and isinstance(shape[1], int) and shape[1] <= _CLASSES:
        why = f"{output} looks like the probabilities of {shape[1]} tags that do not exclude each other"
        return "f1_multilabel", why, (_THRESHOLD,)
    if len(shape) == 4 and 1 in (shape[1], shape[3]):
        return "iou", f"{output} looks like the probability of each pixel; for other maps, use mse", (_THRESHOLD,)
    return None
