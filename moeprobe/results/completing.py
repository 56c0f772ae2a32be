"""The end of a run that is measured in one go: its tables, its figures, and the mark that it is finished."""

from moeprobe.results.folder import OutputFolder, Result


def complete(folder: OutputFolder | None, result: Result, *, figures: bool, svg: bool) -> Result:
    """Write all of a result into its folder, figures if wanted; returns it with the sums as they are in their file.

    Without a folder nothing is written.

    Raises:
        UserError: something that was written is not there any more.
    """
    if folder is None:
        return result
    # The tables first: what a figure may stumble over is not lost.
    result = folder.write(result)
    if figures:
        from moeprobe.results.figures import save_all

        save_all(result.plot(), folder.path / "figures", svg=svg)
    folder.finish(result.sidecar)
    return result
