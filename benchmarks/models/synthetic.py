"""Drawn pictures and computed sounds with labels that are known because they were made."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.signal import lfilter

Floats = NDArray[np.float32]
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz0123456789"))
RATE = 16_000
# Mean and standard deviation of ImageNet's colours.
MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
# First three formants in Hz, of men: G. Peterson and H. Barney, 1952.
VOWELS = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
    (570, 840, 2410),
    (660, 1720, 2410),
    (490, 1350, 1690),
)
STEP, CONTEXT = 512, 64


def words(rng: np.random.Generator, count: int) -> str:
    """Return random words of 3 to 7 letters and digits."""
    return " ".join("".join(rng.choice(LETTERS, rng.integers(3, 8))) for _ in range(count))


def _noisy(picture: Image.Image, rng: np.random.Generator) -> Floats:
    """Return the picture with noise, channels first, from 0 to 1."""
    pixels = np.asarray(picture.convert("RGB"), np.float32)
    pixels = (pixels + rng.normal(0, rng.uniform(2, 8), pixels.shape)).clip(0, 255) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)


def _paper(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), tuple(int(level) for level in rng.integers(170, 256, 3)))


def _ink(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(level) for level in rng.integers(0, 90, 3))


def line_picture(rng: np.random.Generator, width: int, height: int) -> Floats:
    """Return one line of text, channels first, from -1 to 1."""
    picture = _paper(rng, width, height)
    font = ImageFont.load_default(float(rng.integers(height // 2, 3 * height // 4)))
    place = int(rng.integers(2, 12)), int(rng.integers(0, height // 6))
    ImageDraw.Draw(picture).text(place, words(rng, 4), fill=_ink(rng), font=font)
    return _noisy(picture, rng) * 2 - 1


def page(rng: np.random.Generator, width: int = 320, height: int = 320) -> tuple[Floats, NDArray[np.int64]]:
    """Return a page with lines of text, normalized as ImageNet, and its mask: 1 inside the boxes of the lines.

    The boxes are as much smaller as those that differentiable binarization learns: M. Liao et al., 2020, with a ratio of 0.4.
    """
    picture, mask = _paper(rng, width, height), np.zeros((height, width), np.int64)
    draw, top = ImageDraw.Draw(picture), int(rng.integers(8, 40))
    while top < height - 40:
        size = int(rng.integers(14, 30))
        font = ImageFont.load_default(float(size))
        place = int(rng.integers(6, width // 3)), top
        line = words(rng, int(rng.integers(1, 5)))
        draw.text(place, line, fill=_ink(rng), font=font)
        left, upper, right, lower = (int(edge) for edge in draw.textbbox(place, line, font=font))
        right = min(right, width)
        margin = round((right - left) * (lower - upper) * (1 - 0.4**2) / 2 / (right - left + lower - upper))
        mask[upper + margin : lower - margin, left + margin : right - margin] = 1
        top += size + int(rng.integers(8, 50))
    pixels = (_noisy(picture, rng) - MEAN[:, None, None]) / SPREAD[:, None, None]
    return pixels.astype(np.float32), mask


def document(rng: np.random.Generator, size: int) -> tuple[Floats, int]:
    """Return a page of text turned by 0, 90, 180 or 270 degrees, and the number of quarter turns clockwise."""
    pixels, _ = page(rng, size, size)
    turns = int(rng.integers(4))
    return np.ascontiguousarray(np.rot90(pixels, -turns, (1, 2))), turns


def objects(rng: np.random.Generator, size: int = 416) -> Floats:
    """Return a picture with letters and shapes on a ground of many colours, channels first, from 0 to 255."""
    ground = Image.fromarray(rng.integers(60, 256, (6, 6, 3), np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(ground)
    for _ in range(int(rng.integers(2, 7))):
        left, top = (int(edge) for edge in rng.integers(10, size - 90, 2))
        side = int(rng.integers(30, 80))
        colour = tuple(int(level) for level in rng.integers(0, 256, 3))
        if rng.random() < 0.7:
            letter = str(rng.choice(LETTERS)).upper()
            draw.text((left, top), letter, fill=colour, font=ImageFont.load_default(float(side)))
        else:
            draw.ellipse((left, top, left + side, top + side), outline=colour, width=4)
    return np.asarray(_noisy(ground, rng) * 255, np.float32)


def notes(rng: np.random.Generator, length: int = 43_844, rate: int = 22_050) -> Floats:
    """Return two seconds of plucked notes, one to four at a time, with some noise: `(length, 1)`."""
    times, mixed = np.arange(length) / rate, np.zeros(length)
    for _ in range(int(rng.integers(4, 12))):
        pitch, start = 440 * 2 ** (rng.integers(-24, 25) / 12), rng.uniform(0, 1.7)
        after = np.clip(times - start, 0, None)
        envelope = np.minimum(after / 0.01, 1) * np.exp(-after * rng.uniform(1.5, 5))
        mixed += envelope * sum(np.sin(2 * np.pi * k * pitch * after) / k ** rng.uniform(1, 2) for k in range(1, 7))
    mixed += rng.normal(0, 10 ** rng.uniform(-4, -2), length)
    return np.asarray(mixed / np.abs(mixed).max() * rng.uniform(0.2, 0.9), np.float32)[:, None]


def _resonance(signal: NDArray[np.float64], frequency: float, bandwidth: float) -> NDArray[np.float64]:
    radius = np.exp(-np.pi * bandwidth / RATE)
    feedback = [1.0, -2 * radius * np.cos(2 * np.pi * frequency / RATE), radius**2]
    return np.asarray(lfilter([sum(feedback)], feedback, signal), np.float64)


def _syllable(rng: np.random.Generator, pitch: float, scale: float) -> NDArray[np.float64]:
    """Return a glide between two vowels, pulses through resonances, and before most of them a fricative."""
    length = int(rng.integers(1600, 4800))
    share = np.arange(length) / length
    glide = pitch * (1 + 0.15 * np.sin(np.pi * share * rng.uniform(0.5, 1.5) + rng.uniform(0, 6)))
    pulses = np.diff(np.floor(np.cumsum(glide * (1 + 0.01 * rng.normal(size=length))) / RATE), prepend=0)
    source = np.asarray(lfilter([1], [1, -0.95], pulses), np.float64) + 0.02 * rng.normal(size=length)
    ends = []
    for vowel in rng.integers(0, len(VOWELS), 2):
        voiced = source
        for frequency, bandwidth in zip((*VOWELS[vowel], 3500), (80, 100, 140, 200), strict=True):
            voiced = _resonance(voiced, frequency * scale, bandwidth)
        ends.append(voiced)
    voiced = np.diff(ends[0] * (1 - share) + ends[1] * share, prepend=0)
    voiced *= np.minimum(1, np.minimum(share, 1 - share) * length / 480) / np.abs(voiced).max()
    if rng.random() < 0.4:
        return voiced
    hiss = _resonance(rng.normal(size=int(rng.integers(600, 1600))), rng.uniform(3500, 6000), 800)
    return np.concatenate([hiss / np.abs(hiss).max() * 0.25 * np.hanning(len(hiss)), voiced])


def utterance(rng: np.random.Generator, steps: int = 32) -> tuple[Floats, NDArray[np.int64]]:
    """Return a second of synthetic speech between silences as steps of 576 values, and for each step if it is speech.

    Each step has 512 new values, after the last 64 of the step before.
    """
    length = STEP * steps
    heard, is_speech = np.zeros(length), np.zeros(length, bool)
    at, end = int(rng.integers(0, length // 3)), int(rng.integers(2 * length // 3, length))
    pitch, scale = rng.uniform(90, 230), rng.uniform(0.9, 1.2)
    while at < end:
        syllable = _syllable(rng, pitch, scale)[: length - at]
        heard[at : at + len(syllable)] += syllable
        # Pauses between the syllables of one utterance belong to it.
        is_speech[at : at + len(syllable) + 1200] = True
        at += len(syllable) + int(rng.integers(0, 1200))
    heard = heard * rng.uniform(0.1, 0.6) + rng.normal(size=length) * 10 ** rng.uniform(-4, -2)
    padded = np.concatenate([np.zeros(CONTEXT), heard]).astype(np.float32)
    frames = np.stack([padded[step * STEP : (step + 1) * STEP + CONTEXT] for step in range(steps)])
    return frames, (is_speech.reshape(steps, STEP).mean(axis=1) > 0.5).astype(np.int64)


def stacked(count: int, draw: Any, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return `count` draws of `draw()`, a tuple each, as one array for each name."""
    columns = zip(*(draw() for _ in range(count)), strict=True)
    return {name: np.stack([np.asarray(one) for one in column]) for name, column in zip(names, columns, strict=True)}
