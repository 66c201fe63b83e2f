"""Base class and shared types of the job's settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# The user's own function, as `module:function`.
FUNCTION_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]


# Spelling in titles of words that differ from the key; units follow in brackets.
_SPELLED = {"fp16": "FP16", "mmd": "MMD", "p": "p-", "psi": "PSI", "sqnr": "SQNR", "tf32": "TF32"}
_UNITS = {"db": "dB", "hours": "hours", "mb": "MB", "seconds": "seconds"}


def title_of(key: str, _: object = None) -> str:
    """Return the title of a setting in a form.

    >>> title_of("min_sqnr_db"), title_of("seconds"), title_of("min_leak_p_value")
    ('Min SQNR (dB)', 'Seconds', 'Min leak p-value')
    """
    stem, _, unit = key.rpartition("_")
    told = f" ({_UNITS[unit]})" if stem and unit in _UNITS else ""
    words = " ".join(_SPELLED.get(word, word) for word in (stem if told else key).split("_")).replace("- ", "-")
    return words[:1].upper() + words[1:] + told


class Settings(BaseModel):
    """Frozen part of the job that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        field_title_generator=title_of,
    )
