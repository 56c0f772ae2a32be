"""What of the catalog is about images, and what about texts."""

from moeprobe.inputs.modality import IMAGE, TEXT
from moeprobe.runtime.catalog import DATA, VIEWS

IMAGE_VIEWS = [name for name in VIEWS.names() if VIEWS.get(name).modality is IMAGE]
TEXT_VIEWS = [name for name in VIEWS.names() if VIEWS.get(name).modality is TEXT]
IMAGE_DATA = [name for name in DATA.names() if DATA.get(name).modality is IMAGE]
