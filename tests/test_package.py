"""The wheel works where the repository is not; documentation examples run; nothing unsafe is used."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import cobo
from cobo.experiments import EXPERIMENTS

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_installs_into_a_clean_environment_and_the_demo_runs(tmp_path):
    def call(*command, **options):
        done = subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, timeout=900, cwd=tmp_path, **options
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        name.removeprefix("cobo/models/small_gpt/") for name in zipfile.ZipFile(wheel).namelist()
    }
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    where = call(python, "-c", "import cobo; print(cobo.__file__)")
    assert str(tmp_path / "env") in where
    out = call(tmp_path / "env" / "bin" / "cobo", "demo", "--out", tmp_path / "demo")
    for method in ("cobo", "local", "oracle"):
        assert method in out
    assert (tmp_path / "demo" / "results.json").exists()
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000


def modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(cobo.__path__, "cobo.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.slow
def test_the_readmes_python_example_runs_and_its_comparison_is_reported(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for command in (["-c", "".join(blocks)], ["-m", "cobo", "report", "mine"]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert re.findall(r"^(local|fedavg|cobo) ", done.stdout, re.M) == ["local", "fedavg", "cobo"]
    assert (tmp_path / "mine" / "report.html").exists()


def explained(page: str) -> dict[str, str]:
    """The settings in the first column of a page's tables, and what the second says."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) ?\|", (ROOT / "docs" / page).read_text(), re.M)
    return {name: second for names, second in rows for name in re.findall(r"\w+", names)}


@pytest.mark.parametrize(("settings", "page"), [(cobo.CoBo, "methods.md"), (cobo.Training, "experiments.md")])
def test_every_setting_is_explained_with_its_default(settings, page):
    said = explained(page)
    for name, field in settings.model_fields.items():
        assert said.get(name) == (str(field.default) if field.default_factory is None else ""), name


def test_every_key_of_an_experiment_file_is_explained():
    assert {key for kind in EXPERIMENTS.values() for key in kind.model_fields} <= set(explained("experiments.md"))


def test_nothing_unpickles_or_evaluates():
    bad = re.compile(r"\bpickle\.\w|import pickle|torch\.load\(|allow_pickle|\beval\(|\bexec\(")
    for path in (ROOT / "src").rglob("*.py"):
        found = [line for line in path.read_text().splitlines() if bad.search(line) and ".eval()" not in line]
        assert not found, path


def test_methods_do_no_io_and_know_no_engine():
    for room in ("methods", "collaboration", "federation", "compute"):
        for path in (ROOT / "src" / "cobo" / room).glob("*.py"):
            text = path.read_text()
            assert not re.search(r"^(from|import) cobo\.(training|engines|report|experiments|cli)", text, re.M), path
            assert not re.search(r"\bopen\(|\bprint\(", text), path
