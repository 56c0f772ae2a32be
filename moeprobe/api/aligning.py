"""Ask several trainings together: a function with the parameters of ``align`` written out."""

from typing import Unpack

from moeprobe.adapters.base import Models
from moeprobe.api.asking import ask
from moeprobe.probes.align import Align
from moeprobe.probes.engine.options import Keywords, Options, with_options
from moeprobe.results.folder import Result
from moeprobe.runtime.progress import Progress


@with_options
def align(
    models: Models,
    *,
    data: str | None = None,
    permutations: int = Align.permutations,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Align the experts of trainings by the tokens that they have in common, and measure how far they agree.

    Args:
        models: two trainings or more, loaded or by path.
        data: as in ``match_ratio``.
        permutations: random orders of the images, which show how well unrelated routing can be aligned.
        options: as in ``match_ratio``.
        watcher: as in ``match_ratio``.

    Raises:
        UserError: there is one training, experts get shares of every token, or layers differ.
    """
    return ask(Align(permutations=permutations), models, data, options, watcher, changes)
