"""What the receiver takes for a delivery of MLflow's: held against MLflow's own signing, and against what forgers would try."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import deliveries
import pytest
from deliveries import NewVersion, Refused, Stamp, check_signature, read_delivery, read_stamp
from flood import payload
from hypothesis import given
from hypothesis import strategies as st
from prefect_events import PrefectDown, event_of
from receiver import Receiver
from seen_deliveries import KEPT_SECONDS, SeenDeliveries

SECRET, OTHER = "a-secret-of-the-tests", "an-older-secret-of-theirs"
ID, NOW = "0b5ad6b0-3f0e-4d8e-9d0a-6f3f0d3f2d11", 1_790_000_000.0
BODY = json.dumps(payload("ranker", "7")).encode()


def refusal(of: Any, *arguments: Any) -> int:
    """The status that a call refuses with."""
    with pytest.raises(Refused) as caught:
        of(*arguments)
    assert SECRET not in caught.value.reason
    return caught.value.status


def stamp(at: float = NOW, secret: str = SECRET, body: bytes = BODY) -> Stamp:
    """A stamp as MLflow makes it: its own function is the oracle."""
    from mlflow.webhooks.delivery import _generate_hmac_signature

    text = str(int(at))
    return Stamp(ID, text, _generate_hmac_signature(secret, ID, text, body.decode()).encode())


def test_what_mlflow_signs_is_taken_with_any_of_the_secrets() -> None:
    """By MLflow's own signature, of the example and the event names that it has."""
    from mlflow.webhooks.types import ModelVersionCreatedPayload

    for secrets in ((SECRET,), (OTHER, SECRET), (SECRET, OTHER)):
        check_signature(stamp(), BODY, secrets, NOW)
    assert refusal(check_signature, stamp(), BODY, (OTHER,), NOW) == 401
    example = payload("x") | {"data": dict(ModelVersionCreatedPayload.example())}
    assert read_delivery(json.dumps(example).encode()).ignored == "this is MLflow's example"


@pytest.mark.parametrize(("seconds", "taken"), [(0, True), (-299, True), (299, True), (-301, False), (301, False)])
def test_the_window_is_five_minutes_to_both_sides(seconds: int, taken: bool) -> None:
    """Of a true signature."""
    if taken:
        check_signature(stamp(NOW + seconds), BODY, (SECRET,), NOW)
    else:
        assert refusal(check_signature, stamp(NOW + seconds), BODY, (SECRET,), NOW) == 401


@given(st.data())
def test_no_changed_byte_keeps_a_signature(data: st.DataObject) -> None:
    """Of body, id, timestamp or signature."""
    true = Stamp(ID, str(int(NOW)), deliveries.sign(SECRET, ID, str(int(NOW)), BODY))
    parts = [BODY, true.delivery.encode(), true.timestamp.encode(), true.signature]
    which = data.draw(st.integers(0, 3))
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    byte = data.draw(st.integers(33, 126).filter(lambda code: code != parts[which][at]))
    parts[which] = parts[which][:at] + bytes([byte]) + parts[which][at + 1 :]
    body, delivery, timestamp, signature = parts
    forged = Stamp(delivery.decode(), timestamp.decode(), signature)
    assert refusal(check_signature, forged, body, (SECRET,), NOW) == 401


@pytest.mark.parametrize(
    "change",
    [
        {deliveries.DELIVERY: "not a uuid"},
        {deliveries.DELIVERY: f"{ID}.1"},
        {deliveries.TIMESTAMP: "-1"},
        {deliveries.TIMESTAMP: "1e9"},
        {deliveries.TIMESTAMP: "\uff11"},
        {deliveries.TIMESTAMP: "9" * 40},
    ],
)
def test_headers_have_one_form(change: dict[str, str]) -> None:
    """Whatever can be read in two ways is refused before anything is computed."""
    good = {deliveries.DELIVERY: ID, deliveries.TIMESTAMP: str(int(NOW)), deliveries.SIGNATURE: "v1,\xff"}
    assert read_stamp(good).signature == b"v1,\xff"
    assert refusal(read_stamp, good | change) == 401
    for name in good:
        assert refusal(read_stamp, {key: value for key, value in good.items() if key != name}) == 401


def test_names_as_mlflow_allows_them_are_taken() -> None:
    """Spaces, dots, quotes and other scripts."""
    for name in ("ranker", "my model", "a.b-c_d", "O'Neill", "модель", "x@y", "{{ event.id }}"):
        assert read_delivery(json.dumps(payload(name, "12")).encode()) == NewVersion(name, "12")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_taken_or_refused_and_nothing_else(told: Any) -> None:
    """No body makes the receiver fail."""
    named = payload("x")
    named["data"]["name"] = told
    for body in (told, payload("x") | {"data": told}, payload("x", "1", tags=told), named):
        with contextlib.suppress(Refused):
            assert isinstance(read_delivery(json.dumps(body).encode()), NewVersion)


class HesitantPrefect:
    """Takes events after a while, and not before it was asked as often as `refusals`."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.taken = refusals, []

    async def emit(self, event: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        if self.refusals:
            self.refusals -= 1
            raise PrefectDown("not now")
        self.taken.append(event["id"])


@pytest.mark.parametrize("refusals", [0, 1, 3])
def test_deliveries_with_one_id_that_come_at_once_are_one_event(tmp_path: Path, refusals: int) -> None:
    """As many are told to come again as Prefect refused, one is taken, the others were taken before."""
    prefect: Any = HesitantPrefect(refusals)
    receiver = Receiver((SECRET,), prefect, SeenDeliveries(tmp_path / "seen.sqlite"))

    async def all_at_once() -> list[Any]:
        tries = [receiver.take(ID, NewVersion("ranker", "7")) for _ in range(8)]
        return await asyncio.gather(*tries, return_exceptions=True)

    kinds = [type(outcome) for outcome in asyncio.run(all_at_once())]
    assert (kinds.count(PrefectDown), kinds.count(type(None)), kinds.count(Refused)) == (refusals, 1, 7 - refusals)
    assert prefect.taken == [event_of(ID, NewVersion("ranker", "7"))["id"]]
    assert len(receiver.in_flight) == 0, "nothing is kept of a delivery that is through"
    receiver.seen.close()


def test_what_was_seen_is_seen_by_the_next_process(tmp_path: Path) -> None:
    """For a week."""
    path = tmp_path / "new" / "seen.sqlite"
    first = SeenDeliveries(path)
    first.add(ID, NOW)
    first.close()
    second = SeenDeliveries(path)
    assert ID in second and "another" not in second
    second.add("another", NOW + KEPT_SECONDS + 1)
    assert ID not in second and "another" in second
    second.close()
