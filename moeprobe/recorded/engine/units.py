"""What ``--unit`` names, of recorded requests: their prompts, or what a file says."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import REQUEST
from moeprobe.probes.engine.units import units_of_inputs
from moeprobe.recordings.pairs import clusters_of
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.sampled_units import SampledUnits, is_file_of_units

_PROMPT = "prompt"
# Inputs whose tokens are in memory at a time.
_BLOCK = 256


def units_of_recordings(
    unit: str | None, traces: Sequence[TraceFile], ids: Sequence[str]
) -> SampledUnits | None:
    """Return the units of recorded inputs; None = requests, whose choices are one sample already.

    Raises:
        UserError: there is no such unit or file, or an input has no unit.
    """
    if unit in (None, REQUEST.name):
        return None
    clusters = clusters_of(traces)
    # An input of each sample that all traces hold: the first one may lack that which a cluster is called after.
    held: dict[str, str] = {}
    for name in ids:
        held.setdefault(clusters.get(name, name), name)
    samples = list(held)
    if unit == _PROMPT:
        prompts = _prompts(traces[0], list(held.values()))
        return SampledUnits(_PROMPT, {sample: prompts[name] for sample, name in held.items()})
    if is_file_of_units(unit):
        return units_of_inputs(unit, samples)
    raise UserError(
        f"A recording does not say the {unit} of a request; {option('unit')} takes {REQUEST.name}, {_PROMPT}, or a CSV "
        "with the columns image_id and unit."
    )


def _prompts(trace: TraceFile, names: Sequence[str]) -> dict[str, str]:
    """Return a hash of each input's prompt.

    Raises:
        UserError: the trace does not say which tokens an input's prompt has.
    """
    layer, prompts = next(iter(trace.layers)), {}
    for start in range(0, len(names), _BLOCK):
        block_names = names[start : start + _BLOCK]
        block = trace.read(layer, block_names)
        for row, name in enumerate(block_names):
            tokens = slice(0, int(block.num_tokens[row]))
            ids, generated = (
                None if column is None else column[row, tokens]
                for column in (block.token_ids, block.generated)
            )
            if ids is None or generated is None or (ids < 0).any() or (generated < 0).any():
                raise UserError(
                    f"{trace.path} does not say which tokens the prompt of {name} has; ask the server to return token "
                    f"ids and import again, or name a CSV with the columns image_id and unit in {option('unit')}."
                )
            prompt = np.ascontiguousarray(ids[generated == 0])
            prompts[name] = sha256(prompt.tobytes()).hexdigest()[:16]
    return prompts
