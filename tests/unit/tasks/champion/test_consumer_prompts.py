"""What a decoder is asked: texts in any form that MLflow passes on."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself
        consumer = importlib.import_module("tasks.champion.consumer.consumer")
    assert consumer._asked(given) == (prompts, new_tokens)
