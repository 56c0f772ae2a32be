"""The command line: one file per command; each parses, calls the library once, prints the results and the files.

Nothing heavy is imported here: ``moeprobe --help`` must not wait for torch.
"""

import os
import sys

# Two small models on a few cores: threads that spin while they wait for one another stop each other whenever another
# process wants a core (measured: 13 times slower). It must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from moeprobe.cli.front.environment import (
    INTERRUPTED,
    USER_ERROR,
    collect_rarely,
    open_missing_streams,
    prepare,
    say,
    system_error,
)
from moeprobe.errors import UserError
from moeprobe.runtime import distributed
from moeprobe.runtime.catalog import use_plugins
from moeprobe.runtime.plugins import plugin_options


def main() -> None:
    """Run the command line and exit.

    0 done, 1 a bug, 2 the user's input is wrong, 3 a gate of ``compare`` or ``trace check`` failed, 130, 143 or 129
    ended by a signal.
    """
    open_missing_streams()
    with distributed.ending():
        try:
            _run()
        except KeyboardInterrupt:  # before a command has begun
            sys.exit(INTERRUPTED)


def _run() -> None:
    wrong = prepare(sys.argv[1:])
    try:
        if wrong is not None:
            raise UserError(wrong)
        # Before the application is made, whose commands and help texts follow from the catalogs.
        plugins = plugin_options(sys.argv[1:])
        # Plug-ins and files that make models are user code: a collection at exit closes what it leaves open.
        collect_rarely(at_end=bool(plugins) or any("py:" in argument for argument in sys.argv[1:]))
        use_plugins(plugins)
        from moeprobe.cli.app import app
    except Exception as error:
        sentence = error if isinstance(error, UserError) else system_error(error)
        if sentence is None:
            raise
        say(sentence)
        sys.exit(USER_ERROR)
    try:
        app()
    except SystemExit as ended:
        # Whoever reads the output, as `head` does, has read enough: no bug, which 1 would say.
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(0)
        raise
