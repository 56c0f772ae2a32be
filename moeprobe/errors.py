"""The one exception that is the user's to mend."""


class UserError(Exception):
    """The user's input is wrong: one sentence that says what, and how to mend it.

    On the command line it is printed without a traceback and the exit code is 2; in a notebook it is an
    ordinary exception.
    """
