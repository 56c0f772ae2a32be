"""The declaration of ``correspond``: a picture of views, with or without a checkpoint."""

from moeprobe.declarations import Kind, Layout


class Correspond(Kind):
    """Corresponding patches of two views."""

    name = "correspond"
    title = "Corresponding patches of two views"
    layout = Layout.OWN
