"""What ``--unit`` names: files, folders, columns and prompts, at measuring time and afterwards."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.data.text import Text
from moeprobe.judging.words import word_of
from moeprobe.probes.engine.units import units_of_dataset, units_of_inputs
from moeprobe.probes.flips.sentences import sentences
from moeprobe.recordings.format import KEY
from moeprobe.results.numbers import few_carriers, words_of_flag
from moeprobe.results.sampled_units import SampledUnits, read_units, units_of_runs

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "reference" / "digits-baseline-k2-seed0"
IDS = [f"r{number:02d}" for number in range(60)]


def trace(folder: Path, name: str, shift: int) -> Path:
    """Sixty requests of three tokens; those of one hour choose alike."""
    lines = [
        json.dumps(
            {
                "id": request,
                "layer": "mlp",
                "experts": [[(number // 3 + place * shift) % 4] for place in range(3)],
                "token_ids": [number // 3, 1, 2],
                "generated": [False, True, True],
            }
        )
        for number, request in enumerate(IDS)
    ]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    api.import_trace(folder / f"{name}.jsonl", folder / f"{name}.parquet", num_experts=4)
    return folder / f"{name}.parquet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("units")
    for name, shift in ("even", 1), ("uneven", 2):
        trace(path, name, shift)
    rows = [f"{request},{number // 3}" for number, request in enumerate(IDS)]
    (path / "hours.csv").write_text("\n".join(["image_id,hour", *rows]))
    return path


def test_a_file_counts_at_measuring_time_and_afterwards(folder: Path) -> None:
    """The same differences follow from runs of units and from runs of requests that are given units later."""
    tables = {}
    for unit in (str(folder / "hours.csv"), None):
        outs = []
        for name in ("even", "uneven"):
            outs.append(folder / f"{name}-{'hours' if unit else 'requests'}")
            api.analyze_trace(folder / f"{name}.parquet", out=outs[-1], unit=unit, figures=False)
        tables[unit] = api.compare(outs, unit=None if unit else str(folder / "hours.csv"))
    first, second = tables.values()
    pd.testing.assert_frame_equal(first.table.drop(columns="run"), second.table.drop(columns="run"))
    assert set(first.table["images"]) == {20}
    assert set(first.table["unit"]) == {"hour"}
    table = pd.read_csv(folder / "even-hours" / "table.csv")
    assert set(table["unit"]) == {"hour"}
    assert (folder / "even-hours" / "units.csv").read_text().startswith("image_id,hour\n")
    # Of requests the same values, with other intervals.
    requests = pd.read_csv(folder / "even-requests" / "table.csv")
    assert "unit" not in requests
    assert requests["value"].equals(table["value"])
    assert set(requests["images"]) == {60}


def test_runs_of_other_units_need_a_name(folder: Path) -> None:
    api.analyze_trace(
        folder / "even.parquet", out=folder / "a", unit=str(folder / "hours.csv"), figures=False
    )
    api.analyze_trace(folder / "uneven.parquet", out=folder / "b", figures=False)
    with pytest.raises(UserError, match="count hours and images; name one unit"):
        api.compare([folder / "a", folder / "b"])
    assert set(api.compare([folder / "a", folder / "b"], unit=str(folder / "hours.csv")).table["images"]) == {
        20
    }


def test_prompts_are_units_of_recordings(folder: Path) -> None:
    """Three requests each have one prompt, which the file of hours says too."""
    by_prompt = api.analyze_trace(folder / "even.parquet", unit="prompt").table
    by_hour = api.analyze_trace(folder / "even.parquet", unit=str(folder / "hours.csv")).table
    # Their order differs, and so do resamples; scores follow from the sums of units alone.
    scores, columns = by_hour["interval"] == "score", ["value", "ci_low", "ci_high", "images"]
    assert scores.sum() > 3
    pd.testing.assert_frame_equal(by_prompt[scores][columns], by_hour[scores][columns])
    with pytest.raises(UserError, match="does not say the hour of a request"):
        api.analyze_trace(folder / "even.parquet", unit="hour")


def test_routes_refuse_units() -> None:
    """Key routes and their permutations are of images, whatever a unit is."""
    with pytest.raises(UserError, match="routes counts and permutes inputs; leave unit out"):
        api.routes(CHECKPOINT, data="digits", unit="folder", limit=20, figures=False)


def test_prompts_of_clusters_whose_first_request_one_trace_lacks(tmp_path: Path) -> None:
    """The second of two requests of a prompt is in both traces; only one says that they are a cluster."""
    for name, places in ("a", (1,)), ("b", (0, 1)):
        lines = [
            json.dumps(
                {
                    "id": f"r{prompt}-{place}",
                    "layer": "mlp",
                    "experts": [[prompt % 4], [place], [2]],
                    "token_ids": [prompt // 2, 1, 2],
                    "generated": [False, True, True],
                }
            )
            for prompt in range(50)
            for place in places
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        api.import_trace(tmp_path / f"{name}.jsonl", tmp_path / f"{name}.parquet", num_experts=4)
    path = tmp_path / "b.parquet"
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[KEY])
    about["clusters"] = {f"r{prompt}-1": f"r{prompt}-0" for prompt in range(50)}
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {KEY: json.dumps(about)}), path)
    found = api.analyze_trace([tmp_path / "a.parquet", path], unit="prompt", figures=False).table
    assert set(found[found["metric"] == "top1_match"]["images"]) == {25}
    assert set(found["unit"]) == {"prompt"}


def test_a_study_whose_page_speaks_of_inputs_refuses_units(folder: Path) -> None:
    with pytest.raises(UserError, match="audit counts inputs; leave unit out"):
        api.audit(folder / "even.parquet", unit="prompt")


def test_what_is_too_little_is_counted_in_units() -> None:
    """Three of ten patients carry a price, however many images they have."""
    row: dict[str, Any] = {"flag": "few_images", "verdict": "few images", "judgement": "", "carriers": 3.0}
    row |= {"tokens": "patch", "dataset": "scans", "unit": "patient"}
    assert words_of_flag(row) == word_of(row) == "few patients"
    assert few_carriers(row) == "carried by few patients: 3"
    assert words_of_flag(row | {"unit": None}) == "few images"
    # Noise is known over images alone, whatever was sampled.
    assert words_of_flag(row | {"flag": "of_images"}) == "of images"
    price = {"checkpoint": "a", "layer": "l", "metric": "flip_price_runner_up", "value": 0.1, "images": 40}
    price |= row | {"flag": "few_carriers", "ci_low": np.nan, "ci_high": np.nan}
    beyond = price | {"metric": "flip_beyond_runner_up", "flag": ""}
    (said,) = sentences(pd.DataFrame([price, beyond]))
    assert "carried by 3 of 40 patients, so it has no interval" in said
    assert said.endswith("By a rough estimate, 130 patients would be enough.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image_id,unit\na,1\na,2", "two units for 'a'"),
        ("image,unit\na,1", "columns image, unit"),
        ("image_id,age,sex\na,1,2", "name two of them image_id and unit"),
        ("image_id,unit\nb,1", "no unit for 'c'"),
        ("image_id,unit\nb,1\nc,", "no unit for 'c'"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "units.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_units(path).of(["b", "c"], source="units.csv")


def test_folders_and_columns(tmp_path: Path) -> None:
    ids = ["p1/left.png", "p1/right.png", "p2/left.png"]
    found = units_of_inputs("folder", ids)
    assert found is not None
    assert found.unit_of == {"p1/left.png": "p1", "p1/right.png": "p1", "p2/left.png": "p2"}
    with pytest.raises(UserError, match="one folder"):
        units_of_inputs("folder", ["test/0", "test/1"])
    with pytest.raises(UserError, match=r"'top.png' is in no folder, so it has no unit \(1 of 4 inputs"):
        units_of_inputs("folder", [*ids, "top.png"])
    with pytest.raises(UserError, match="no column 'patient'"):
        units_of_inputs("patient", ids)
    path = tmp_path / "notes.jsonl"
    rows = [{"text": f"note {number}", "patient": number // 2, "score": 0.5} for number in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)))
    notes = Text(split="test", location=str(path))
    assert notes.column_names == ("patient",)
    of_notes = units_of_dataset("patient", notes, [0, 1, 3])
    assert of_notes is not None
    assert of_notes.unit_of == {"notes/0": "0", "notes/1": "0", "notes/3": "1"}


def test_units_of_several_runs_agree() -> None:
    first, second = SampledUnits("patient", {"a": "1"}), SampledUnits("patient", {"a": "2"})
    with pytest.raises(UserError, match="two units for 'a'"):
        units_of_runs([first, second])
    both = units_of_runs([first, SampledUnits("patient", {"b": "2"})])
    assert both is not None
    assert both.unit_of == {"a": "1", "b": "2"}
    assert first.digest() != second.digest()
