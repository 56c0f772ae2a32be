"""What of the catalog is about images, and what about texts."""

from moeprobe.catalog import DATA, VIEWS
from moeprobe.medium import IMAGE, TEXT

IMAGE_VIEWS = [name for name in VIEWS.names() if VIEWS.get(name).medium is IMAGE]
TEXT_VIEWS = [name for name in VIEWS.names() if VIEWS.get(name).medium is TEXT]
IMAGE_DATA = [name for name in DATA.names() if DATA.get(name).medium is IMAGE]
