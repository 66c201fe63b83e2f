"""Faults planted in the demos' real data: each is caught by the check that names it, and clean sets are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from models.pools import Pool, image_pool, other_domain, text_pool
from numpy.typing import NDArray

from tasks.measure.activations import ActivationWatch, open_tapped, view_samples
from tasks.measure.taps import find_taps
from tasks.ptq.calibrate.selection import choose_samples
from validators.calibration.judge import judge_calibration
from validators.calibration.representation import measure_distances, project
from validators.errors import DataError
from validators.job.job_data import CalibrationBounds
from validators.records.run import CalibrationVerdict, SessionSettings
from validators.samples.datasets import Samples, TensorSpec, load_samples

pytestmark = pytest.mark.slow

SEED = 7
CALIBRATION, EVALUATION, LEAKED = 128, 1000, 50
Pair = tuple[Samples, Samples]
Rows = NDArray[np.intp]


class Bench:
    """A demo's pool, split by a seed, and its model in a session: what faults are planted in and judged with."""

    def __init__(self, pool: Pool, watch: ActivationWatch, folder: Path) -> None:
        self.pool, self._watch, self._folder = pool, watch, folder
        self.rng = np.random.default_rng(SEED)
        order = self.rng.permutation(len(pool.labels))
        self.evaluation_rows, self.rest = order[:EVALUATION], order[EVALUATION:]
        self.rows = self.rest[:CALIBRATION]
        self.evaluation = pool.take(self.evaluation_rows)

    def take(self, rows: Rows, **changes: NDArray[np.generic]) -> Pair:
        """Calibration samples from these rows of the pool, and the evaluation samples."""
        return self.pool.take(rows, **changes), self.evaluation

    def embed(self, samples: Samples) -> NDArray[np.float32]:
        """What the model makes of each sample."""
        return self._watch.ranges(samples, np.arange(len(samples)), None)[1]

    def judge(self, pair: Pair) -> CalibrationVerdict:
        """The verdict of the whole check."""
        view = view_samples(self._watch, *pair, most=384, fixed_batch=None, seed=SEED)
        self.judged = getattr(self, "judged", 0) + 1
        return judge_calibration(*pair, None, view, CalibrationBounds(), self._folder / f"page{self.judged}", seed=SEED)


@contextmanager
def bench(make: Callable[[Path], Pool], folder: Path) -> Iterator[Bench]:
    pool = make(folder)
    settings = SessionSettings("CPUExecutionProvider", 2)
    with open_tapped(pool.model, settings, lambda graph: find_taps(graph, pool.output, None)) as watch:
        yield Bench(pool, watch, folder)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(text_pool, tmp_path_factory.mktemp("texts")) as made:
        yield made


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(image_pool, tmp_path_factory.mktemp("digits")) as made:
        yield made


def clean(of: Bench) -> Pair:
    return of.take(of.rows)


def without_a_class(of: Bench) -> Pair:
    return of.take(of.rest[of.pool.labels[of.rest] != 1][:CALIBRATION])


def shortest(of: Bench) -> Pair:
    lengths = of.pool.inputs["attention_mask"][of.rest].sum(axis=1)
    return of.take(of.rest[np.argsort(lengths, kind="stable")[:CALIBRATION]])


def ten_times_too_few(of: Bench) -> Pair:
    return of.take(of.rows[:6])


def every_sample_twice(of: Bench) -> Pair:
    return of.take(np.concatenate([of.rows, of.rows]))


def leaked_exactly(of: Bench) -> Pair:
    return of.take(np.concatenate([of.rows[LEAKED:], of.evaluation_rows[:LEAKED]]))


def leaked_with_another_token(of: Bench) -> Pair:
    """One token of each leaked text replaced by one from elsewhere in the vocabulary."""
    rows = np.concatenate([of.rows[LEAKED:], of.evaluation_rows[:LEAKED]])
    ids = of.pool.inputs["input_ids"][rows]
    for row in ids[-LEAKED:]:
        row[of.rng.integers(1, np.count_nonzero(row) - 1)] = of.rng.integers(2000, 25_000)
    return of.take(rows, input_ids=ids)


def leaked_with_noise(of: Bench) -> Pair:
    rows = np.concatenate([of.rows[LEAKED:], of.evaluation_rows[:LEAKED]])
    images = of.pool.inputs["image"][rows]
    noise = of.rng.normal(0, 0.03 * images.std(), images[-LEAKED:].shape)
    images[-LEAKED:] += noise.astype(np.float32)
    return of.take(rows, image=images)


def from_elsewhere(name: str) -> Callable[[Bench], Pair]:
    def plant(of: Bench) -> Pair:
        other = other_domain(name)
        chosen = of.rng.permutation(len(other["input_ids"]))[:CALIBRATION]
        return of.take(of.rows, **{key: array[chosen] for key, array in other.items()})

    return plant


def labels_shuffled(of: Bench) -> Pair:
    return of.take(of.rows, labels=of.rng.permutation(of.pool.labels[of.rows]))


def scaled(factor: float) -> Callable[[Bench], Pair]:
    return lambda of: of.take(of.rows, image=of.pool.inputs["image"][of.rows] * np.float32(factor))


def one_nan(of: Bench) -> Pair:
    images = of.pool.inputs["image"][of.rows]
    images[17, 1, 40, 40] = np.nan
    return of.take(of.rows, image=images)


def two_digits_alone(of: Bench) -> Pair:
    """Without labels, so that the representation alone can tell."""
    calibration, evaluation = of.take(of.rest[np.isin(of.pool.labels[of.rest], (0, 1))][:CALIBRATION])
    return Samples(calibration.file, calibration.inputs, None), evaluation


# Where, fault, outcome, the check that must name it and words that it must say; None for a clean set.
FAULTS: dict[str, tuple[str, Callable[[Bench], Pair], str, str | None, list[str]]] = {
    "clean texts": ("texts", clean, "accepted", None, []),
    "clean digits": ("digits", clean, "accepted", None, []),
    "labels shuffled among classes": ("texts", labels_shuffled, "accepted", None, []),
    "one class missing": ("texts", without_a_class, "refused", "labels_covered", ["label 1: 0 samples", "of label 1"]),
    "one digit missing": ("digits", without_a_class, "refused", "labels_covered", ["label 1: 0 samples"]),
    "only short texts": ("texts", shortest, "refused", "same_distribution", ["input_ids.length drifts by PSI and KS"]),
    "ten times too few": ("texts", ten_times_too_few, "refused", "enough_samples", ["6 samples", "at least 58 more"]),
    "every sample twice": (
        "texts",
        every_sample_twice,
        "accepted_with_warnings",
        "no_duplicates",
        ["128 of 256 samples (50.0%)", "remove or replace 128 repeated samples"],
    ),
    "5 % of the evaluation set leaked": (
        "texts",
        leaked_exactly,
        "refused",
        "no_leakage",
        ["50 of 128 samples are in"],
    ),
    "leaked, a token changed": ("texts", leaked_with_another_token, "refused", "no_leakage", ["nearly the same"]),
    "leaked digits": ("digits", leaked_exactly, "refused", "no_leakage", ["50 of 128 samples are in"]),
    "leaked digits with noise": ("digits", leaked_with_noise, "refused", "no_leakage", ["50 nearly the same"]),
    "tweets": ("texts", from_elsewhere("tweets"), "refused", "same_representation", ["squared discrepancy 0."]),
    "product reviews": ("texts", from_elsewhere("amazonReviewSnippets"), "refused", "same_representation", []),
    "editorials": ("texts", from_elsewhere("nytEditorialSnippets"), "refused", "same_representation", []),
    "scaled by 1.5": ("digits", scaled(1.5), "refused", "same_distribution", ["image.std drifts by PSI and KS"]),
    "too dark": ("digits", scaled(0.5), "refused", "ranges_hold", ["values outside the range", "of image (into"]),
    "NaN in one sample": ("digits", one_nan, "refused", "finite", ["'image' of 1 sample", "drop or repair sample 17"]),
    "two digits of ten": ("digits", two_digits_alone, "refused", "reference_covered", ["like these of", "stands for"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_real_data_is_caught_by_the_check_that_names_it(fault: str, request: pytest.FixtureRequest) -> None:
    where, plant, outcome, name, words = FAULTS[fault]
    of: Bench = request.getfixturevalue(where)
    verdict = of.judge(plant(of))
    assert verdict.outcome == outcome, [(check.name, check.found) for check in verdict.failed]
    failed = {check.name: check for check in verdict.failed}
    if name is None:
        assert not failed
        return
    said = f"{failed[name].found} | {failed[name].expected} | {failed[name].fix}"
    assert [word for word in words if word not in said] == [], said
    assert failed[name].fix


INPUTS = (
    TensorSpec("input_ids", "int64", ("batch", "sequence")),
    TensorSpec("attention_mask", "int64", ("batch", "s")),
)


def wrong_dtype(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    np.savez(path, **arrays | {"input_ids": arrays["input_ids"].astype(np.int32)})


def empty(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    path.write_bytes(b"")


def no_samples(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    np.savez(path, **{name: array[:0] for name, array in arrays.items()})


def another_kind(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    """A Parquet file under the suffix of numpy's."""
    import pandas as pd

    pd.DataFrame({name: list(array) for name, array in arrays.items()}).to_parquet(path)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (wrong_dtype, "input_ids is int32"),
        (empty, "is an empty file, not an npz archive"),
        (no_samples, "has no samples"),
        (another_kind, "is a Parquet file, not an npz archive"),
    ],
)
def test_a_file_that_is_no_data_is_an_error_of_the_file(
    write: Callable[[Path, dict[str, NDArray[np.generic]]], None], words: str, texts: Bench, tmp_path: Path
) -> None:
    write(tmp_path / "calibration.npz", texts.pool.take(texts.rows).inputs)
    with pytest.raises(DataError) as caught:
        load_samples(tmp_path / "calibration.npz", INPUTS, label="label", role="calibration")
    assert words in caught.value.found and caught.value.expected and caught.value.fix


def test_suggested_set_beats_random_draws_and_is_accepted(texts: Bench) -> None:
    """Of 128 from 1,000 reviews; the coverage is that of reviews which were not in the pool."""
    pool = texts.rest[:1000]
    vectors = texts.embed(texts.pool.take(pool))
    held = texts.embed(texts.pool.take(texts.evaluation_rows[:600]))
    places = project(np.concatenate([vectors, held]), vectors, held)[1:]
    chosen = choose_samples(places[0], CALIBRATION, strata=texts.pool.labels[pool], seed=SEED)

    def distances(rows: Rows) -> NDArray[np.float64]:
        return measure_distances(places[0][rows], places[1])[1]

    draws = [np.random.default_rng(seed).choice(len(pool), CALIBRATION, replace=False) for seed in range(20)]
    # One radius for all: a set that is spread wider has a larger one, and would cover more by that alone.
    radius = np.mean([np.quantile(measure_distances(places[0][rows], places[1])[0], 0.95) for rows in draws])
    random = [float((distances(rows) <= radius).mean()) for rows in draws]
    assert (distances(chosen) <= radius).mean() > np.mean(random)
    assert distances(chosen).mean() < min(distances(rows).mean() for rows in draws)
    verdict = texts.judge(texts.take(pool[chosen]))
    assert verdict.outcome == "accepted", [(check.name, check.found) for check in verdict.failed]
