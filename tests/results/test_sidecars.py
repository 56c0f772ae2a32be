"""The request and the sidecar of a run: dicts in the order of their file, with typed reads."""

import json

from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Request, Sidecar, make_sidecar, provenance
from moeprobe.results.stored import SumsStore
from moeprobe.results.tables import frame

REQUEST = {
    "seed": 3,
    "kind": "sweep",
    "view": {"name": "affine", "degrees": 10},
    "data": "digits",
    "checkpoints": {"a": {}},
}


def test_a_sidecar_is_written_in_the_order_of_the_file() -> None:
    sidecar = make_sidecar(
        REQUEST, device="cpu", training_images=4, command="moeprobe sweep", colors={"a": "#000000"}
    )
    assert list(sidecar)[:5] == ["request", "command", "colours", "device", "training_images"]
    assert list(sidecar)[5:] == list(provenance())
    assert json.dumps(sidecar["request"]) == json.dumps(REQUEST), "a request keeps its order"


def test_what_is_not_there_reads_as_nothing() -> None:
    sidecar = Sidecar({"request": REQUEST})
    assert sidecar.request.kind == "sweep" and sidecar.request.view_name == "affine"
    assert sidecar.request.checkpoints == {"a": {}} and sidecar.request.probe == {}
    assert sidecar.colors == {} and sidecar.notes == [] and sidecar.severity_unit is None
    assert not sidecar.request.trained_capacity
    assert sidecar.fail_if_worse is None
    assert (sidecar | {"notes": ["x"]}).notes == ["x"], "entries that are added leave it a sidecar"
    assert Request({"kind": "compare", "probe": REQUEST}).probe.data == "digits"


def test_a_result_of_a_plain_dict_reads_the_same() -> None:
    """As a plug-in may make it."""
    result = Result(frame([{"checkpoint": "a", "value": 0.5}]), None, SumsStore(()), {"request": REQUEST})  # type: ignore[arg-type]
    assert result.sidecar.request.data == "digits" and result.sidecar == {"request": REQUEST}
