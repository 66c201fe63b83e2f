"""The job files of a deployment, which decide the registered models that take part, and their jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.run.settings import state_folder
from validators.errors import JobError
from validators.job.job import Job
from validators.job.read_job import read_job
from validators.plain_text import plain

JOBS_TAG = "quantgate.jobs"
NO_JOBS = "none"

# A name that can stand in a tag between commas. Names are only looked up among existing files.
_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Jobs:
    """The jobs of a folder by the names of their files, and the errors of those that could not be read."""

    folder: Path
    found: dict[str, Job] = field(default_factory=dict)
    broken: dict[str, JobError] = field(default_factory=dict)


def jobs_folder() -> Path:
    """Return the folder of job files: `QUANTGATE_JOBS`, or `jobs` in the state folder."""
    told = os.environ.get("QUANTGATE_JOBS")
    return Path(told).resolve() if told else state_folder() / "jobs"


def read_jobs() -> Jobs:
    """Read every `*.yaml` of the folder; a broken file does not affect the others.

    Raises:
        JobError: there is no such folder, although `QUANTGATE_JOBS` names it.
    """
    folder = jobs_folder()
    if os.environ.get("QUANTGATE_JOBS") and not folder.is_dir():
        raise JobError(
            found=f"QUANTGATE_JOBS={folder}: no such folder",
            expected="a folder of job files",
            fix="create the folder, or unset QUANTGATE_JOBS",
        )
    jobs = Jobs(folder)
    for path in sorted(folder.glob("*.yaml")):
        # Editors keep hidden files beside the one that they edit.
        if path.name.startswith("."):
            continue
        try:
            _check_name(path)
            jobs.found[path.stem] = read_job(path)
        except JobError as error:
            jobs.broken[plain(path.stem)] = error
        except Exception as error:  # what a library raises on one file must not stop the jobs of all models
            jobs.broken[plain(path.stem)] = JobError(
                found=f"job file {path}: {type(error).__name__}: {error}",
                expected="a YAML file of a job, such as examples/text.yaml",
                fix="correct the file, or move it out of the folder",
            )
    return jobs


def jobs_for(name: str, tags: Mapping[str, str], jobs: Jobs) -> dict[str, Job]:
    """Return the jobs of a registered model, by name; empty if the model does not take part.

    The tag `quantgate.jobs` of the model decides, if set: names of job files, or `none`. Without it, the jobs whose `source`
    is of this model are returned.

    Raises:
        JobError: the tag names a missing or broken job, or two of the jobs are for one target.
    """
    told = tags.get(JOBS_TAG)
    if told is None:
        chosen = {key: job for key, job in jobs.found.items() if job.source_name == name}
    else:
        names = [part.strip() for part in told.split(",") if part.strip() not in ("", NO_JOBS)]
        asked = f"the tag {JOBS_TAG} of the model {name} names the job"
        chosen = {key: job_named(jobs, key, asked) for key in names}
    _check_targets(name, chosen)
    return chosen


def at_version(job: Job, name: str, version: str) -> Job:
    """Return the job with a version of a registered model as its source.

    Raises:
        JobError: no URI can name that model.
    """
    if set(name) & set("/@:"):
        raise JobError(
            found=f"a registered model called {name!r}",
            expected="a name without / @ and :, which have a meaning in models:/<name>/<version>",
            fix="register the model under another name",
        )
    return job.model_copy(update={"source": f"models:/{name}/{version}"})


def _check_name(path: Path) -> None:
    if not _NAME.fullmatch(path.stem):
        raise JobError(
            found=f"job file {path.name!r}",
            expected="a name of letters, digits, dots, hyphens and underscores: tags name it",
            fix="rename the file",
        )


def job_named(jobs: Jobs, key: str, asked: str) -> Job:
    """Return the job of a name; `asked` says in the error who names it.

    Raises:
        JobError: there is no such job, or its file is broken.
    """
    if key in jobs.broken:
        raise jobs.broken[key]
    if key not in jobs.found:
        raise JobError(
            found=f"{asked} {key[:100]!r}",
            expected=f"one of {', '.join(jobs.found) or 'none at all'} in {jobs.folder}",
            fix=f"correct the name, or add {key[:100]}.yaml to the folder",
        )
    return jobs.found[key]


def _check_targets(name: str, chosen: Mapping[str, Job]) -> None:
    targets = [job.target for job in chosen.values()]
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        rivals = ", ".join(key for key, job in chosen.items() if job.target == twice)
        raise JobError(
            found=f"the jobs {rivals}, all of the model {name} for {twice}",
            expected="one job per model and target: there is one champion",
            fix=f"name the job to use in the tag {JOBS_TAG} of the model",
        )
