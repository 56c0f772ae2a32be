"""Views are named with their file and their parameters, wherever a view is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.open import mirroring_omitted, open_view
from moeprobe.inputs.view_names import ViewName, parse_view, split_views
from tests.commands import Trained, refused, run


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("affine", ViewName("affine", "", {})),
        ("typos:my, file.txt", ViewName("typos", "my, file.txt", {})),
        ("a:b,c=1", ViewName("a", "b", {"c": 1})),
        ("a,b=[0.2, 0.4],c=true", ViewName("a", "", {"b": [0.2, 0.4], "c": True})),
        ("a , b = x", ViewName("a", "", {"b": "x"})),
        ("", ViewName("", "", {})),
    ],
)
def test_parts_of_a_name(text: str, parts: ViewName) -> None:
    assert parse_view(text) == parts


def test_commas_part_views_and_belong_to_their_parameters() -> None:
    names = [
        "gaussian_blur",
        "corruption,kind=snow,moves=false",
        "random_crop,first_area=[0.2,0.4]",
        "affine",
    ]
    assert split_views(names) == names == split_views([",".join(names)]) == split_views([" , ".join(names)])
    assert split_views([]) == []


@pytest.mark.parametrize("text", ["a,b=[", "a,b=1,b=2"])
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match="The view "):
        parse_view(text)


def test_a_parameter_reaches_the_view() -> None:
    assert open_view("random_crop,first_area=[0.2,0.4]").first_area == (0.2, 0.4)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="Did you mean 'first_area'"):
        open_view("random_crop,frist_area=[0.2,0.4]")


@pytest.mark.parametrize(
    ("view", "omitted"),
    [
        *(({"name": name, "flip": False}, True) for name in ("prc_crops", "inception_crop", "randaugment")),
        ({"name": "autoaugment", "flip": False}, True),
        ({"name": "autoaugment", "flip": True}, False),
        # It mirrors only where it is asked to.
        ({"name": "random_crop", "flip": False}, False),
        ({"name": "clean"}, False),
        # Of several recorded views, which name no fields.
        ({"name": "brightness, rotation"}, False),
    ],
)
def test_which_views_were_made_not_to_mirror(view: dict[str, Any], omitted: bool) -> None:
    assert mirroring_omitted(view) is omitted


def test_a_parameter_is_part_of_the_request(trained: Trained, tmp_path: Path) -> None:
    """Crops of nearly the whole image correspond in most patches, small ones in few."""
    pairs = {}
    for name, area in {"small": "0.1,0.2", "whole": "0.95,1"}.items():
        out = tmp_path / name
        view = f"random_crop,first_area=[{area}],second_area=[{area}]"
        assert run("match-ratio", trained["prc"], "--limit", 20, "--view", view, "--out", out).exit_code == 0
        request = json.loads((out / "run.json").read_text())
        assert request["view"]["name"] == "random_crop"
        assert request["view"]["first_area"] == [float(end) for end in area.split(",")]
        pairs[name] = json.loads(
            run("match-ratio", trained["prc"], "--limit", 20, "--view", view, "--json").stdout
        )
    trials = {
        name: max(row["trials"] for row in one["table"] if row["metric"] == "top1_match")
        for name, one in pairs.items()
    }
    assert trials["small"] < trials["whole"] / 2
    assert "no parameter of the view" in refused(
        "match-ratio", trained["prc"], "--view", "random_crop,size=3"
    )


def test_names_and_mirrors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="is named first"):
        parse_view("random_crop,name=x")
    digits = open_data("digits", split="test")
    with pytest.raises(UserError, match="must not be mirrored"):
        open_view("prc_crops,flip=true", dataset=digits)
    assert open_view("prc_crops,flip=false", dataset=digits).flip is False  # type: ignore[union-attr]
