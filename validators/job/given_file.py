"""A file of another tool as a candidate: it is judged, and promoted, as if a recipe had made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from validators.job.candidate_name import GIVEN_NAME, Candidate, Precision, TargetName
from validators.job.settings_base import FUNCTION_NAME, Settings
from validators.targets import facts_of

# Tools with an adapter: a script of quantgate's own that calls the tool, in tasks/evidence/given/adapters.
ADAPTERS = ("auto-round", "modelopt", "neural-compressor", "nncf", "olive", "optimum", "optimum-intel")


def _is_an_engine(name: str) -> str:
    if engines := facts_of(name).engines:
        raise ValueError(f"{name} is a class of devices; name the engine that runs the file: {', '.join(engines)}")
    return name


class TensorCodes(Settings):
    """Codes of 8 bits for an input or output of floats: value = scale * (code - zero_point), as in ONNX."""

    scale: Annotated[float, Field(gt=0)]
    """Value of one step."""
    zero_point: Annotated[int, Field(ge=-128, le=255)] = 0
    """Code that stands for zero."""


class GivenFile(Settings):
    """A file that another tool made from the source, and that is judged beside the recipes."""

    name: Annotated[str, Field(pattern=rf"^{GIVEN_NAME}$")]
    """Your name for it, such as `nncf`; the candidate is called `int8-given-nncf@openvino`."""
    file: Path = Path()
    """An ONNX file, with its weights beside it if they have files of their own, or for `openvino` an `.xml` with its `.bin`, or
    for `torch-inductor` and `torch-cuda` an exported program (`.pt2`); or a folder with one such file, as exporters of decoders
    write it."""
    source: Annotated[str, Field(pattern=r"^(models:/[^/@\s]+/\d+|runs:/[0-9a-f]{32}/\S+)$")] | None = None
    """In place of `file`: a registered version that holds one such file, `models:/name/version`, or a run's artifact or folder
    of artifacts that does, `runs:/id/path`."""
    make: Annotated[str, Field(pattern=rf"^({'|'.join(ADAPTERS)})$|{FUNCTION_NAME}")] | None = None
    """In place of `file`: a tool that `python` has (`nncf`, `olive`, `optimum`, `modelopt`, `neural-compressor`; for decoders
    `optimum-intel`, `auto-round`), called as its guide does. Or `module:function` of a Python file in the job's `code` folder,
    such as `quantize:nncf_int8`. It is called with the paths of the source (of a decoder the folder with its safetensors), of
    an `.npz` with the calibration samples, and of a work folder, and returns the path of the file that it made there, or of a
    folder with it."""
    python: Path | None = None
    """Python that runs `make`, such as `/opt/nncf/bin/python`; null for quantgate's own."""
    seconds: Annotated[float, Field(gt=0, le=86400)] = 1800.0
    """Longest time that `make` may take."""
    engine: Annotated[TargetName, AfterValidator(_is_an_engine)]
    """Engine that runs it."""
    precision: Precision = "int8"
    """What it is said to be: the gates on coverage ask whether kernels of this precision really ran."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Its inputs that have other names than the source's, each with the name that the source has for it."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """The same for outputs."""
    codes: dict[str, TensorCodes] = Field(default_factory=dict)
    """Inputs and outputs that an ONNX file has in UINT8 or INT8 where the source has float32, by the source's name, such as
    `{"x": {"scale": 0.02, "zero_point": 128}}`."""
    command: Annotated[str, Field(max_length=500)] = ""
    """How it was made, for the records: a command, or the tool with its version."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> GivenFile:
        if [self.file != Path(), self.source is not None, self.make is not None].count(True) != 1:
            raise ValueError("give one of `file`, `source` and `make`")
        return self

    @property
    def has_adapter(self) -> bool:
        """True if a script of quantgate's own makes it."""
        return self.make in ADAPTERS

    def below(self, folder: Path) -> GivenFile:
        """Return the same with a relative path of its file resolved against the folder."""
        return self if self.file == Path() else self.model_copy(update={"file": folder / self.file})

    @property
    def candidate(self) -> str:
        """Name of the candidate."""
        return Candidate(self.precision, self.engine, given=self.name).name
