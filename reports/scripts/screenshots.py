"""Take the picture of a report that guides show, of committed runs, with a headless Chromium.

    python -m reports.scripts.screenshots

Writes ``docs/img/report.png``: the top of the report of ``reports/digits``.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from moeprobe import api
from moeprobe.errors import UserError
from reports.scripts.printed import in_256_colors

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "img" / "report.png"
RUNS = tuple(ROOT / "reports" / "digits" / name for name in ("match-ratio", "noise-sweep", "eval"))
# In pixels: the conclusion, and the first figure.
SIZE = (1400, 1560)
# No connection but to the page.
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def main() -> None:
    """Report the runs, and take the picture."""
    browser = shutil.which("chromium")
    if browser is None:
        raise UserError("There is no chromium; install it (Debian: chromium).")
    with tempfile.TemporaryDirectory() as folder:
        api.report(RUNS, names=["V-MoE", "V-MoE + PRC"], out=Path(folder) / "report")
        shot = Path(folder) / "report.png"
        subprocess.run(
            [browser, *_FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={SIZE[0]},{SIZE[1]}",
             f"--screenshot={shot}", (Path(folder) / "report" / "report.html").as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        with Image.open(shot) as picture:
            in_256_colors(picture.convert("RGB")).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
