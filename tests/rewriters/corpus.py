"""Published models to rewrite: which, where they are fetched from, and what a run over them looks like as text.

Nothing of them is kept in the repository: wheels come through pip, single files from where their authors publish them,
into a folder for temporary files (or ANNOPIPE_CORPUS); what cannot be fetched is skipped with the reason.
"""

import collections
import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from rewriters import FileResult, Settings
from rewriters.running import run

__all__ = [
    "FILES",
    "WHEELS",
    "PublishedFile",
    "Wheel",
    "fetch_file",
    "fetch_wheel",
    "golden_text",
    "models",
    "rewritten",
]


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A wheel, and which of its files are models."""

    name: str
    version: str
    models: str

    @property
    def title(self) -> str:
        return f"{self.name}-{self.version}"


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """One file of a repository, by commit and the first 12 digits of its sha256."""

    repository: str
    commit: str
    path: str
    sha: str

    @property
    def title(self) -> str:
        return f"{self.repository}/{self.path}"


WHEELS = (
    Wheel("transformers", "5.24.0", "transformers/models/*/modeling_*.py"),
    Wheel("transformers", "4.57.6", "transformers/models/*/modeling_*.py"),
    Wheel("sglang", "0.5.23", "sglang/srt/models/*.py"),
)
_TITAN = "pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"
_MEGATRON = "NVIDIA/Megatron-LM", "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
FILES = (
    PublishedFile(*_TITAN, "torchtitan/models/common/moe.py", "e76cb188e299"),
    PublishedFile(*_TITAN, "torchtitan/models/common/token_dispatcher.py", "ccc3e3442cf2"),
    PublishedFile(*_TITAN, "torchtitan/models/deepseek_v3/model.py", "c8a456019c20"),
    PublishedFile(
        "meta-pytorch/autoparallel",
        "a54c2529b1cb10b6b27a585b4a6fc2f84bc1d232",
        "autoparallel/_testing/models/dsv3.py",
        "69ff2c2219ac",
    ),
    PublishedFile(*_MEGATRON, "megatron/core/transformer/moe/moe_layer.py", "f7d1f123348e"),
    PublishedFile(*_MEGATRON, "megatron/core/transformer/moe/token_dispatcher.py", "18f9b0ef848a"),
    PublishedFile(
        "deepseek-ai/DeepSeek-V3", "9b4e9788e4a3a731f7567338ed15d3ec549ce03b", "inference/model.py", "fdb7995bc234"
    ),
    PublishedFile(
        "deepspeedai/DeepSpeed",
        "edaa7221267243c7be7fb49c5d5f5c4fb97b4641",
        "deepspeed/moe/sharded_moe.py",
        "6bc0df69b25b",
    ),
    PublishedFile(
        "microsoft/Tutel", "ac0e51b943bb7084d4a6a7243e44a4afe04b9911", "tutel/impls/moe_layer.py", "62b750ea5d24"
    ),
    PublishedFile(
        "databricks/megablocks", "78eea65fda01e638af36ae38853bc51efb04a4b4", "megablocks/layers/moe.py", "d76f49a69141"
    ),
    PublishedFile(
        "allenai/OLMo-core",
        "fa6c5014c9f6e9ee789da2d9c20d5126fee8df0d",
        "src/olmo_core/nn/moe/parallel_mlp.py",
        "b486c2965dc3",
    ),
    PublishedFile("laekov/fastmoe", "ee3c5615a5588c65273a512de82f19ca287e1bdf", "fmoe/layers.py", "884ddc76fcfd"),
    PublishedFile("wolfecameron/nanoMoE", "661fbcfade3e3081b3ed1150bc07e49082f46b48", "model.py", "0e625926c0ad"),
    PublishedFile(
        "mistralai/mistral-inference",
        "2557e12d0e1878a1562ece30434820f80aa3e12a",
        "src/mistral_inference/moe.py",
        "674c7d207f20",
    ),
)


def cache() -> Path:
    """Where fetched files are kept between runs."""
    folder = Path(os.environ.get("ANNOPIPE_CORPUS", Path(tempfile.gettempdir()) / "annopipe-corpus"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch_wheel(wheel: Wheel) -> Path:
    """The folder with the Python files of a wheel; the test is skipped if pip cannot get it."""
    folder = cache() / wheel.title
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache()) as temporary:
            arguments = ["download", "--no-deps", "--quiet", "--disable-pip-version-check", "--dest", temporary]
            arguments += ["--only-binary", ":all:", f"{wheel.name}=={wheel.version}"]
            done = subprocess.run(
                [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False, timeout=300
            )
            if done.returncode != 0:
                pytest.skip(f"pip cannot fetch {wheel.title}: {done.stderr.strip().splitlines()[-1]}")
            (file,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(file) as archive:
                archive.extractall(Path(temporary) / "files", [n for n in archive.namelist() if n.endswith(".py")])
            (Path(temporary) / "files").replace(folder)
    return folder


def fetch_file(file: PublishedFile) -> Path:
    """A published file, with the right bytes; the test is skipped if it cannot be reached."""
    path = cache() / file.repository / file.commit / file.path
    if not path.is_file():
        address = f"https://raw.githubusercontent.com/{file.repository}/{file.commit}/{file.path}"
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                data = answer.read()
        except OSError as error:
            pytest.skip(f"{address} cannot be reached: {error}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert hashlib.sha256(path.read_bytes()).hexdigest()[:12] == file.sha
    return path


def models(wheel: Wheel) -> list[Path]:
    """The files of a wheel that hold models with experts."""
    return [path for path in fetch_wheel(wheel).glob(wheel.models) if b"self.experts" in path.read_bytes()]


def rewritten(paths: Iterable[Path], *codes: str) -> list[FileResult]:
    """What becomes of files, generated ones, too."""
    return list(run(sorted(paths), Settings(select=codes or ("AP1",), include_generated=True)))


def golden_text(results: Iterable[FileResult], root: Path) -> str:
    """Counts of sites by rule, role and action, and what was refused, as text that a person can read."""
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    files = collections.defaultdict(set)
    refused = []
    for result in results:
        assert result.error == "", f"{result.path}: {result.error}"
        for site in result.sites:
            key = site.rule, site.role, site.action
            counts[key] += 1
            files[key].add(result.path)
            if site.action == "refused":
                refused.append(f"{Path(result.path).relative_to(root).as_posix()}:{site}")
    lines = [f"{' '.join(key):<28} {counts[key]:>4} in {len(files[key])} files" for key in sorted(counts)]
    return "\n".join([*lines, *refused, ""])
