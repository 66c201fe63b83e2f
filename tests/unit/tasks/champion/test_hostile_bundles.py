"""Hostile evidence: `quantgate verify` names the part that fails, and the consumer refuses it, in little time and memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from evidence import make_version, new_signer
from hostile_bundles import HOSTILE_BUNDLES, HostileBundle

ROOT = Path(__file__).parents[4]
# Of all bundles together, which take 20 s; a pipe that is waited for takes forever.
PATIENCE_SECONDS = 300
READERS = """
import json, os, resource, sys
from pathlib import Path
from tasks.champion.bundle.verify import verify
from tasks.champion.signed_evidence.check import require_evidence
sys.path.append(str(Path("tests/support")))
from limits import MOST_MB, measured

pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (MOST_MB << 20),) * 2)
for folder in sys.argv[1:]:
    print(folder, file=sys.stderr, flush=True)
    with measured() as exceeded:
        parts = [(part.part, part.told) for part in verify(Path(folder)) if part.is_sound is False]
        artifacts = Path(folder, "artifacts")
        try:
            require_evidence({"evidence": artifacts / "evidence.zip", "manifest": artifacts / "manifest.json"})
            refusal = ""
        except RuntimeError as error:
            refusal = f"{type(error).__name__}: {error}"
    print(json.dumps([Path(folder).name, parts, refusal, exceeded]), flush=True)
"""


@dataclass(frozen=True)
class Read:
    """The parts that fail with their reasons, the consumer's refusal, and the limits that both exceeded."""

    failed: list[tuple[str, str]]
    refusal: str
    exceeded: list[str]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Read]:
    """Each bundle's answers, by name, from one process with a limit on time and memory."""
    folder, signer = tmp_path_factory.mktemp("hostile"), new_signer()
    (folder / "key.pem").write_text(signer.public)
    good = make_version(folder / "good", signer)
    for number, row in enumerate(HOSTILE_BUNDLES):
        copy = Path(shutil.copytree(good.folder, folder / str(number)))
        row.plant(replace(good, folder=copy, members=dict(good.members)))
    places = [str(folder / name) for name in ("good", *map(str, range(len(HOSTILE_BUNDLES))))]
    demands = {"QUANTGATE_REQUIRE_EVIDENCE": "1", "QUANTGATE_EVIDENCE_KEY_FILE": str(folder / "key.pem")}
    done = subprocess.run(
        [sys.executable, "-c", READERS, *places],
        cwd=ROOT,
        env=os.environ | demands,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = {name: Read(*answer) for name, *answer in map(json.loads, done.stdout.splitlines())}
    assert answers["good"] == Read([], "", [])
    return {row.name: answers[str(number)] for number, row in enumerate(HOSTILE_BUNDLES)}


@pytest.mark.parametrize("row", HOSTILE_BUNDLES, ids=lambda row: row.name)
def test_hostile_bundle_fails_at_a_named_part(row: HostileBundle, read: dict[str, Read]) -> None:
    found = read[row.name]
    assert not found.exceeded
    assert found.refusal.startswith("RuntimeError: found ") is row.is_refused and len(found.refusal) < 2000
    if not row.part:
        assert found.failed == []
        return
    ((part, told),) = found.failed
    assert part and row.part in ("*", part) and len(told) <= 1000
    assert "MemoryError" not in told


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "none"])
def test_key_is_read_from_a_regular_file(target: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "tasks.champion.bundle", "evidence.zip", "--key", str(tmp_path / target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 2 and done.stderr.startswith("found: --key"), done.stderr
