"""Only ``--download`` lets a command ask a hub."""

import pytest

from moeprobe.runtime import hub
from tests.commands import run


@pytest.mark.parametrize(("option", "allowed"), [([], False), (["--download"], True)])
def test_a_command_may_ask_the_hub_where_it_is_told_so(
    monkeypatch: pytest.MonkeyPatch, option: list[str], allowed: bool
) -> None:
    seen: list[bool] = []

    def inspect_checkpoint(source: str, *, check: bool) -> dict[str, object]:
        seen.append(hub.may_download())
        return {"layers": [{"layer": "blocks.1"}]}

    monkeypatch.setattr("moeprobe.adapters.inspection.inspect_checkpoint", inspect_checkpoint)
    assert run("inspect", "hf:nobody/nothing", *option).exit_code == 0
    assert seen == [allowed]
    assert not hub.may_download()
