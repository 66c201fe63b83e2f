"""A demo is made once for each recipe, completely or not at all, and its samples are divided without leaks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tasks.demo.assets import MINILM
from tasks.demo.built import Demo, Notes, build_once
from tasks.demo.splits import save_samples, split_indices


@dataclass
class Maker:
    """Makes a demo of three files, and counts how often it was asked to."""

    state: Path
    source: Path
    made: list[Path] = field(default_factory=list)
    fails: bool = False

    def __call__(self, folder: Path) -> Notes:
        self.made.append(folder)
        (folder / "model.bin").write_bytes(b"model")
        if self.fails:
            raise ValueError("no model today")
        for name in ("calibration.npz", "evaluation.npz"):
            save_samples(folder / name, {"x": np.zeros((2, 3), np.float32)})
        return {"fp32_accuracy": 0.5}

    def build(self) -> Demo:
        return build_once(
            self.state,
            "tiny",
            "model.bin",
            assets=[MINILM],
            sources=[self.source],
            distributions=["numpy"],
            make=self,
        )


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    source = tmp_path / "source.py"
    source.write_text("one")
    return Maker(tmp_path / "state", source)


def test_the_second_build_of_a_recipe_is_the_first(maker: Maker) -> None:
    first, second = maker.build(), maker.build()
    assert first == second
    assert len(maker.made) == 1
    assert first.digest == hashlib.sha256(b"model").hexdigest()
    assert first.notes["fp32_accuracy"] == 0.5
    assert {path.parent for path in (first.model_path, first.calibration_path, first.evaluation_path)} == {
        first.model_path.parent
    }
    assert first.evaluation_path.exists() and first.calibration_path.exists()
    assert first.model_path.stat().st_mode & 0o044 == 0o044


def test_another_seed_or_other_code_is_another_recipe(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {maker.build().model_path.parent}
    monkeypatch.setattr("tasks.demo.built.SEED", 8)
    folders.add(maker.build().model_path.parent)
    maker.source.write_text("two")
    folders.add(maker.build().model_path.parent)
    assert len(folders) == 3
    assert len(maker.made) == 3


def test_a_build_that_fails_leaves_nothing(maker: Maker) -> None:
    maker.fails = True
    with pytest.raises(ValueError, match="no model today"):
        maker.build()
    assert list((maker.state / "demo").iterdir()) == []
    maker.fails = False
    assert maker.build().digest


def test_of_two_builders_at_once_the_first_wins(maker: Maker) -> None:
    class Rival(Maker):
        def __call__(self, folder: Path) -> Notes:
            maker.build()  # it finishes while this one is still at work
            return super().__call__(folder)

    rival = Rival(maker.state, maker.source)
    assert rival.build() == maker.build()
    assert (len(rival.made), len(maker.made)) == (1, 1)
    assert len(list((maker.state / "demo").iterdir())) == 1


def test_parts_share_no_sample() -> None:
    label = np.random.default_rng(1).integers(0, 3, 1000)
    split = split_indices(label, 500, 100, 300, seed=7)
    assert len(set(split.train)) == 500 and len(set(split.evaluation)) == 300
    assert not set(split.train) & set(split.evaluation)
    assert len(set(split.calibration)) == 100 and set(split.calibration) <= set(split.train)


@pytest.mark.parametrize(
    ("sizes", "count", "quota"),
    [
        ((60, 40), 10, (6, 4)),  # 6.0 and 4.0
        ((50, 30, 20), 8, (4, 2, 2)),  # 4.0, 2.4 and 1.6: the one left over goes to the last
        ((97, 3), 10, (10, 0)),  # 9.7 and 0.3
    ],
)
def test_calibration_has_each_class_in_its_share(sizes: tuple[int, ...], count: int, quota: tuple[int, ...]) -> None:
    label = np.repeat(np.arange(len(sizes)), sizes)
    split = split_indices(label, len(label), count, 0, seed=3)
    assert tuple(np.bincount(label[split.calibration], minlength=len(sizes))) == quota


def test_the_seed_decides_the_split() -> None:
    label = np.arange(100) % 2
    one, same, other = (split_indices(label, 50, 10, 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.evaluation, same.evaluation) and np.array_equal(one.calibration, same.calibration)
    assert not np.array_equal(one.evaluation, other.evaluation)
