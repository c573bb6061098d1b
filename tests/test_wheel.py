"""The wheel carries what is tracked, and runs the main command outside the checkout."""

import os
import subprocess
import sys
import zipfile

import pytest

from .support import ROOT

CARRIED = ("candor_monai/", "bundles/", "configs/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    files = tracked()
    for name in files:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, timeout=1200)
    (built,) = folder.glob("*.whl")
    return built


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: which files are tracked is not known")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_wheel_holds_the_tracked_files_and_nothing_else(wheel):
    expected = {
        name if name.startswith("candor_monai/") else f"candor_monai/{name}"
        for name in tracked()
        if name.startswith(CARRIED) and not name.endswith(".gitkeep")
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected


def test_the_main_command_runs_from_the_wheel(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "CANDOR_MONAI_KEY_FILE": str(tmp_path / "pseudonym.key")}
    where = [sys.executable, "-c", "import candor_monai.utils as u; print(u.bundle_config())"]
    config = subprocess.run(where, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    path = config.stdout.strip()
    assert path.startswith(str(site))
    command = [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run", "candor_eval", "--config_file", path]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "560 images in, 560 scored, 0 rejected" in done.stdout
    assert (tmp_path / "eval" / "report.html").is_file()
