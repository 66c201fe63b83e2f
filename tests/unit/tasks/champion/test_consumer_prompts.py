"""What a decoder is asked: texts in any form that MLflow passes on."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest


def load_consumer() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself
        return importlib.import_module("tasks.champion.consumer.consumer")


@pytest.mark.parametrize(
    ("given", "prompts", "new_tokens"),
    [
        ("one", ["one"], None),
        (["one", "two"], ["one", "two"], None),
        (np.array(["one", "two"]), ["one", "two"], None),
        (pd.DataFrame({"prompt": ["one"]}), ["one"], None),
        ({"prompt": ["one"], "new_tokens": 7}, ["one"], 7),
        ({"prompt": "one"}, ["one"], None),
        # Tokens, to be scored.
        ({"input_ids": np.ones((2, 3), np.int64)}, [], None),
        (np.ones((2, 3), np.int64), [], None),
        (["one", 2], [], None),
    ],
)
def test_texts_are_prompts_and_numbers_are_tokens(given: Any, prompts: list[str], new_tokens: int | None) -> None:
    assert load_consumer()._asked(given) == (prompts, new_tokens)


@pytest.mark.parametrize("given", [[], {"prompt": []}, np.array([], dtype=object), {"prompt": [], "new_tokens": 3}])
def test_no_prompt_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="found no prompt; expected at least one text"):
        load_consumer()._asked(given)


class OneTokenEach:
    """A decoder of a short context whose tokenizer makes a start of text of any text."""

    context = 8

    def encode(self, text: str) -> list[int]:
        return [0, *map(ord, text)]


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "words"),
    [
        ("", None, "found an empty prompt; expected a text"),
        ("one", 0, "found new_tokens 0; expected at least 1"),
        ("one", -1, "found new_tokens -1; expected at least 1"),
        ("nine letters", None, "found a prompt of 13 tokens; expected 1 to 7"),
    ],
)
def test_a_prompt_without_an_answer_is_refused(prompt: str, new_tokens: int | None, words: str) -> None:
    decoder = load_consumer().GenerativeModel(OneTokenEach(), 4)
    with pytest.raises(ValueError, match=words):
        next(decoder.stream(prompt, new_tokens))
