"""How samples become the inputs of a model: constants, and batches on other axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from validators.errors import JobError
from validators.job.job_data import InputSettings
from validators.samples.datasets import TensorSpec, load_samples, part_of, rows_of
from validators.samples.feeds import feeds_of

X = TensorSpec("x", "float32", ("batch", 3))
STATE = TensorSpec("state", "float32", (2, "batch", 4))
RATE = TensorSpec("rate", "int64", ())
SIZE = TensorSpec("size", "int64", (2,))
EACH = TensorSpec("each", "str", ("batch", 1))


def settings(**found: Any) -> dict[str, InputSettings]:
    return {name: InputSettings(**one) for name, one in found.items()}


def test_samples_are_fed_where_the_model_has_them(tmp_path: Path) -> None:
    feeds = feeds_of(
        settings(state={"batch_axis": 1}, rate={"constant": 8000}, size={"constant": [5, 6]}, each={"constant": "de"}),
        (RATE, STATE, X, SIZE, EACH),
        "m",
    )
    assert feeds.samples == (TensorSpec("state", "float32", ("batch", 2, 4)), X)
    rng = np.random.default_rng(1)
    state, x = rng.normal(size=(5, 2, 4)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", state=state, x=x)
    samples = load_samples(tmp_path / "data.npz", feeds, label="label", role="evaluation")
    batches = list(samples.batches(3))
    assert [batch.rows for batch in batches] == [3, 2]
    last = batches[1]
    assert list(last) == ["rate", "state", "x", "size", "each"]
    assert last["state"].shape == (2, 2, 4)
    np.testing.assert_array_equal(last["state"][:, 1], state[4])
    np.testing.assert_array_equal(last["x"], x[3:])
    assert (last["rate"].shape, last["rate"].dtype, last["rate"]) == ((), np.int64, 8000)
    part = part_of(batches[0], 1, 3)
    assert rows_of(part) == 2 and list(part) == list(last)
    np.testing.assert_array_equal(part["state"], batches[0]["state"][:, 1:])
    np.testing.assert_array_equal(part["x"], x[1:3])
    assert part["rate"] == 8000 and part["size"].tolist() == [5, 6] and part["each"].shape == (2, 1)
    assert last["size"].tolist() == [5, 6] and last["each"].tolist() == [["de"], ["de"]]
    assert [batch["each"].shape for batch in batches] == [(3, 1), (2, 1)]


def test_other_constants_are_other_data(tmp_path: Path) -> None:
    """Stored results are found by the digest of the data: they depend on the constants too."""
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 3), np.float32))
    digests = {
        load_samples(
            tmp_path / "data.npz",
            feeds_of(settings(rate={"constant": rate}), (RATE, X), "m"),
            label="label",
            role="evaluation",
        ).file.digest
        for rate in (8000, 16000, 8000)
    }
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("given", "inputs", "words"),
    [
        ({}, (X, RATE), "`inputs: {rate: {constant: VALUE}}`"),
        ({}, (X, STATE), "`inputs: {state: {batch_axis: 1}}`"),
        ({}, (TensorSpec("x", "float32", (1, 3)), SIZE), "`inputs: {NAME: {constant: VALUE}}`"),
        ({"rate": {"constant": "fast"}}, (X, RATE), "correct the constant"),
        ({"rate": {"constant": 1.5}}, (X, RATE), "correct the constant"),
        ({"each": {"constant": 1}}, (X, EACH), "correct the constant"),
        ({"size": {"constant": [1]}}, (X, SIZE), "write the input into the data files"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    given: dict[str, Any], inputs: tuple[TensorSpec, ...], words: str
) -> None:
    with pytest.raises(JobError) as caught:
        feeds_of(settings(**given), inputs, "m")
    assert words in caught.value.fix


@pytest.mark.parametrize("keys", [{}, {"constant": 1, "batch_axis": 1}, {"constant": 1, "state_from": "h"}])
def test_an_input_has_one_setting(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="give either `constant`, or"):
        InputSettings(**keys)
