"""The declaration of ``correspond``: a picture of views, with or without a checkpoint."""

from typing import ClassVar

from moeprobe.probes.base import Kind, Layout


class Correspond(Kind):
    """Corresponding patches of two views."""

    name: ClassVar[str] = "correspond"
    title: ClassVar[str] = "Corresponding patches of two views"
    layout: ClassVar[Layout] = Layout.OWN
