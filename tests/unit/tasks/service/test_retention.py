"""What may be deleted, by hand and for any policy and registry that hypothesis can think of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.service.retention_policy import (
    DAY_SECONDS,
    LoggedModel,
    Policy,
    StoredItem,
    Version,
    judge_models,
    judge_things,
    judge_versions,
)
from validators.records.journal import DONE, GOING_ON, JOURNAL, ROLLED_BACK, Journal, RolledBack, tag_of

NOW = 1_000 * DAY_SECONDS
CPU = {"quantgate.variant_digest": "d", "quantgate.target": "ort-cpu"}
GPU = CPU | {"quantgate.target": "ort-cuda"}
STRICT = Policy(keep_versions=1, older_than_days=1)


def version(number: int, *, days: float = 100, tags: dict[str, str] = CPU, aliases: Sequence[str] = ()) -> Version:
    """A version that nothing protects, but for what is given."""
    return Version("m-quantized", str(number), NOW - days * DAY_SECONDS, tags, tuple(aliases), f"m-{number}")


def done(previous: int | None) -> dict[str, str]:
    return {JOURNAL: tag_of(Journal(DONE, previous=str(previous) if previous else None))}


def goes(versions: Sequence[Version], policy: Policy = STRICT) -> set[str]:
    """The numbers of the versions that go."""
    return {fate.name.rpartition("/")[2] for fate in judge_versions(versions, policy, NOW) if fate.goes}


def test_the_champion_its_predecessor_and_the_newest_stay() -> None:
    """Of six, 6 is the newest, 5 the champion, and 2 the one before it, for 3 and 4 were rolled back or never promoted."""
    versions = [
        version(1),
        version(2, tags=CPU | done(1)),
        version(3, tags=CPU | done(2) | {ROLLED_BACK: tag_of(RolledBack(2))}),
        version(4),
        version(5, tags=CPU | done(2), aliases=["champion-ort-cpu"]),
        version(6, tags=CPU | {JOURNAL: tag_of(Journal("failed", previous="5"))}),
    ]
    assert goes(versions) == {"1", "4"}
    reasons = {fate.name.rpartition("/")[2]: fate.reason for fate in judge_versions(versions, STRICT, NOW)}
    assert reasons["2"] == "predecessor of champion-ort-cpu" and reasons["5"] == "alias champion-ort-cpu"
    assert "promoted again" in reasons["3"]


def test_each_target_keeps_its_own_newest() -> None:
    versions = [version(1, tags=GPU), version(2), version(3), version(4)]
    assert goes(versions, Policy(keep_versions=2, older_than_days=1)) == {"2"}


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (version(1, days=0.5), "younger than 1 days"),
        (version(1, tags={}), "not quantgate's"),
        (version(1, aliases=["shadow"]), "alias shadow"),
        (version(1, tags=CPU | {JOURNAL: tag_of(Journal("moving"))}), "its promotion is in progress"),
    ],
)
def test_each_reason_alone_keeps_a_version(kept: Version, why: str) -> None:
    versions = [kept, version(2)]
    assert goes([version(1), version(2)]) == {"1"}
    assert goes(versions) == set()
    assert judge_versions(versions, STRICT, NOW)[-1].reason == why


tags = st.fixed_dictionaries(
    {},
    optional={
        "quantgate.variant_digest": st.sampled_from(["", "d", "e"]),
        "quantgate.target": st.sampled_from(["ort-cpu", "ort-cuda", ""]),
        JOURNAL: st.builds(
            lambda phase, previous: tag_of(Journal(phase, previous=previous)),
            st.sampled_from(["registered", "verified", "moving", "done", "interrupted", "failed", "??"]),
            st.none() | st.integers(1, 12).map(str) | st.sampled_from(["x", ""]),
        )
        | st.sampled_from(["", "{}", "[]", "done"]),
        ROLLED_BACK: st.sampled_from([tag_of(RolledBack(1)), "", "by hand"]),
    },
)
registries = st.lists(
    st.builds(
        version,
        st.integers(1, 12),
        days=st.floats(-5, 500),
        tags=tags,
        aliases=st.lists(st.sampled_from(["champion-ort-cpu", "champion-ort-cuda", "mine"]), max_size=2),
    ),
    max_size=12,
    unique_by=lambda one: one.number,
)
policies = st.builds(Policy, keep_versions=st.integers(1, 20), older_than_days=st.integers(1, 400))


@given(registries, policies)
def test_nothing_protected_ever_goes(versions: list[Version], policy: Policy) -> None:
    """Whatever the registry holds, and whatever the policy: what an alias names, what its journal names before it, the next
    lower of its target where there is no journal, what is foreign, young, marked, or being promoted."""
    gone = goes(versions, policy)
    by_number = {one.number: one for one in versions}
    for one in versions:
        journal = one.tags.get(JOURNAL, "")
        if one.aliases:
            assert one.number not in gone
            lower = [
                int(other.number)
                for other in versions
                if other.tags.get("quantgate.target") == one.tags.get("quantgate.target")
                and int(other.number) < int(one.number)
            ]
            if JOURNAL not in one.tags and lower:
                before = by_number[str(max(lower))]
                assert before.number not in gone or JOURNAL in before.tags
            named = [number for number in by_number if f'"previous": "{number}"' in journal and '"phase"' in journal]
            assert not gone & set(named)
        if one.number in gone:
            assert one.tags.get("quantgate.variant_digest")
            assert ROLLED_BACK not in one.tags
            assert NOW - one.created >= policy.older_than_days * DAY_SECONDS
            assert not any(f'"phase": "{phase}"' in journal for phase in GOING_ON)
    for target in {one.tags.get("quantgate.target", "") for one in versions}:
        of_target = [one for one in versions if one.tags.get("quantgate.target", "") == target]
        own = [one for one in of_target if one.tags.get("quantgate.variant_digest")]
        newest = sorted((int(one.number) for one in own), reverse=True)[: policy.keep_versions]
        assert not gone & {str(number) for number in newest}


def test_a_logged_model_goes_when_no_version_is_made_of_it() -> None:
    """Of any model: somebody may have registered the artifact of a variant under a name of their own."""
    models = [LoggedModel("m-1", 0.0), LoggedModel("m-2", 0.0), LoggedModel("m-3", NOW)]
    foreign = Version("theirs", "1", 0.0, {}, (), "m-1")
    assert [fate.goes for fate in judge_models(models, [foreign], STRICT, NOW)] == [False, True, False]


def test_an_entry_stays_while_one_that_stays_names_it() -> None:
    """Through others, and in a circle; leftovers and locks go after a day whatever the policy."""
    old, new = NOW - 90 * DAY_SECONDS, NOW
    things = [
        StoredItem("entry", "store/variant/a", new, frozenset({"store/statistics/b"})),
        StoredItem("entry", "store/statistics/b", old, frozenset({"store/prepared/c", "store/gone/x"})),
        StoredItem("entry", "store/prepared/c", old, frozenset({"store/statistics/b"})),
        StoredItem("entry", "store/variant/d", old, frozenset({"store/prepared/e"})),
        StoredItem("entry", "store/prepared/e", old),
        StoredItem("leftover", "store/variant/.making-1", NOW - 2 * DAY_SECONDS),
        StoredItem("leftover", "store/variant/.making-2", NOW),
        StoredItem("report", "reports/r", old),
        StoredItem("log", "logs/l", new),
    ]
    fates = {fate.name: fate.goes for fate in judge_things(things, Policy(older_than_days=30), NOW)}
    assert {name for name, going in fates.items() if going} == {
        "store/variant/d",
        "store/prepared/e",
        "store/variant/.making-1",
        "reports/r",
    }


entries = st.integers(1, 8).flatmap(
    lambda n: st.lists(
        st.tuples(st.floats(0, 90), st.frozensets(st.integers(0, n - 1).map(str), max_size=3)), min_size=n, max_size=n
    )
)


@given(entries, policies)
def test_what_stays_names_nothing_that_goes(told: list[tuple[float, frozenset[str]]], policy: Policy) -> None:
    things = [
        StoredItem("entry", str(place), NOW - days * DAY_SECONDS, refers) for place, (days, refers) in enumerate(told)
    ]
    fates = {fate.name: fate for fate in judge_things(things, policy, NOW)}
    for thing in things:
        if not fates[thing.name].goes:
            assert not any(fates[other].goes for other in thing.refers_to)
        else:
            assert NOW - thing.used >= policy.older_than_days * DAY_SECONDS
