"""What of the catalog is about images, and what about texts."""

from moeprobe.inputs.medium import IMAGE, TEXT
from moeprobe.runtime.catalog import DATA, VIEWS

IMAGE_VIEWS = [name for name in VIEWS.names() if VIEWS.get(name).medium is IMAGE]
TEXT_VIEWS = [name for name in VIEWS.names() if VIEWS.get(name).medium is TEXT]
IMAGE_DATA = [name for name in DATA.names() if DATA.get(name).medium is IMAGE]
