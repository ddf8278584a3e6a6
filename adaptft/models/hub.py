"""Downloads from Hugging Face and ModelScope through their own clients, with errors that say what to do."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptft import optional
from adaptft.errors import ModelError, OutputError
from adaptft.models.catalog import nearest
from adaptft.records import read_object
from adaptft.requests import Hub
from adaptft.units import format_bytes
from adaptft.writable import check_folder

_TEXT_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "LICENSE*", "README.md"]
_WEIGHTS = ["*.safetensors"]
_CODE = ["*.py"]
_SHA256 = re.compile("[0-9a-f]{64}")
_NOT_NEEDED = ["onnx/*", "openvino/*", "original/*", "runs/*", "*.gguf", "consolidated*.safetensors"]


def download_config(repo: str, *, hub: Hub, revision: str | None) -> dict[str, Any]:
    """config.json of the model ``repo``.

    Raises:
        ModelError: there is no such model, it has no config.json, or the hub cannot be reached.
    """
    folder = _CLIENTS[hub](repo, revision, ["config.json"])
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{repo} has no config.json.", fix="Name a model in Hugging Face form, or download a GGUF file and name it."
        )
    return read_object(path, error=ModelError, fix=f"Delete {path} and run the command again.")


def download(repo: str, *, hub: Hub, revision: str | None, with_code: bool) -> Path:
    """The folder with config, tokenizer and safetensors weights of ``repo``; its Python files only ``with_code``.

    Raises:
        ModelError: there is no such model, it has no safetensors weights, or the hub cannot be reached.
        OutputError: the disk is too full.
    """
    folder = _CLIENTS[hub](repo, revision, _TEXT_FILES + _WEIGHTS + (_CODE if with_code else []))
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{repo} has no weights in safetensors form; pickles (*.bin) can run any code and are not fetched.",
            fix="Name a revision that has them (see its pull requests on the hub), or convert it and name the folder.",
        )
    return folder


def _huggingface(repo: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    wanted: dict[str, Any] = {
        "revision": revision,
        "allow_patterns": patterns,
        "ignore_patterns": _NOT_NEEDED,
        "endpoint": os.environ.get("HF_ENDPOINT"),  # read again here: the client reads it only when it is imported
    }
    with _huggingface_errors(repo, revision):
        missing = _missing(repo, wanted) if _WEIGHTS[0] in patterns else {}
        _check_space(repo, sum(missing.values()))
        folder = Path(snapshot_download(repo, **wanted))
        for name in missing:
            _check_content(repo, folder / name)
        return folder


def _missing(repo: str, wanted: dict[str, Any]) -> dict[str, int]:
    """Files that are still to be downloaded, with their bytes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(repo, dry_run=True, **wanted)
    except DryRunError:  # the hub cannot be reached: the download itself takes the cache or says so
        return {}
    return {file.filename: file.file_size or 0 for file in files if file.will_download}


def _check_space(repo: str, needed: int) -> None:
    """Look before a download of ``needed`` bytes whether the cache takes them.

    Raises:
        OutputError: it cannot be written, or has less free.
    """
    from huggingface_hub import constants

    if needed:
        check_folder(Path(constants.HF_HUB_CACHE), option="HF_HOME")
    if needed > _free_bytes():
        raise OutputError(
            f"{repo} needs {format_bytes(needed)}; the disk of the download cache has {format_bytes(_free_bytes())}.",
            fix="Free some space, or set HF_HOME to a folder on a larger disk.",
        )


def _check_content(repo: str, path: Path) -> None:
    """Compare a large file with the SHA-256 that the hub gave for it: the client compares sizes alone.

    The client keeps a file under its hash, and links to it; small files are kept under hashes of another kind.

    Raises:
        ModelError: it differs; the file is removed.
    """
    stored = path.resolve()
    if not path.is_symlink() or not _SHA256.fullmatch(stored.name):
        return
    with stored.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != stored.name:
        path.unlink()
        stored.unlink()
        raise ModelError(
            f"{path.name} of {repo} was damaged on its way: its SHA-256 is not the one that the hub gives. "
            "It was removed.",
            fix="Run the command again: only this file is fetched again. If that does not help, take another network.",
        )


@contextmanager
def _huggingface_errors(repo: str, revision: str | None) -> Iterator[None]:
    """The client's errors as ModelError and OutputError; the order matters, some are kinds of others."""
    import httpx
    from huggingface_hub import errors

    page = f"https://huggingface.co/{repo}"
    try:
        yield
    except errors.GatedRepoError as cause:
        raise ModelError(
            f"{repo} is gated: its owner asks for an agreement first.",
            fix=f"Accept it at {page} and log in with: hf auth login (or set HF_TOKEN).",
        ) from cause
    except errors.RepositoryNotFoundError as cause:
        raise _not_found(repo, "Hugging Face", "; a private one needs: hf auth login") from cause
    except errors.RevisionNotFoundError as cause:
        raise ModelError(
            f"{repo} has no revision {revision}.", fix=f"See {page}/tree/main for its branches."
        ) from cause
    except errors.HFValidationError as cause:
        raise ModelError(f"{repo} is no hub id: {cause}.", fix="A hub id has the form owner/name.") from cause
    except (errors.LocalEntryNotFoundError, httpx.TransportError, ConnectionError) as cause:
        if isinstance(cause.__cause__, errors.HfHubHTTPError):
            raise _failing(repo, cause.__cause__.response.status_code) from cause
        if kept := _kept_bytes(repo):
            raise _broken_off(repo, kept) from cause
        raise _unreachable(repo, "Hugging Face", "--hub modelscope, or HF_ENDPOINT with a mirror") from cause
    except errors.HfHubHTTPError as cause:
        raise _failing(repo, cause.response.status_code) from cause
    except ValueError as cause:  # a file name that leads out of the repository's folder
        raise ModelError(
            f"{repo} cannot be stored: {' '.join(str(cause).split())[:200]}", fix="Take another copy of the model."
        ) from cause
    except OSError as cause:
        if "Consistency check failed" in str(cause):  # the client's way to say that the file came cut
            raise _broken_off(repo, _kept_bytes(repo)) from cause
        raise _unwritable(repo, cause) from cause


def _kept_bytes(repo: str) -> int:
    """Bytes of whole files of ``repo`` in the download cache; the client keeps no parts of files."""
    from huggingface_hub import constants

    blobs = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "blobs"
    return sum(file.stat().st_size for file in blobs.glob("*") if file.suffix != ".incomplete")


def _broken_off(repo: str, kept: int) -> ModelError:
    return ModelError(
        f"The download of {repo} broke off; files of {format_bytes(kept)} are whole and kept.",
        fix="Run the command again when the network is back: it goes on with the files that are missing.",
    )


def _modelscope(repo: str, revision: str | None, patterns: list[str]) -> Path:
    modelscope = optional.require("modelscope", purpose="--hub modelscope")
    try:
        return Path(
            modelscope.snapshot_download(repo, revision=revision, allow_patterns=patterns, ignore_patterns=_NOT_NEEDED)
        )
    except OSError as cause:
        if isinstance(cause, ConnectionError) or "onnect" in str(cause):
            raise _unreachable(repo, "ModelScope", "--hub hf") from cause
        raise _unwritable(repo, cause) from cause
    except Exception as cause:  # the client has no common base class for its errors
        if "exist" in str(cause) or "404" in str(cause):
            raise _not_found(repo, "ModelScope", "") from cause
        raise _unreachable(repo, "ModelScope", "--hub hf") from cause


def _failing(repo: str, status: int) -> ModelError:
    return ModelError(
        f"Hugging Face answered {status} for {repo}, which was not downloaded before.",
        fix="Try again later, or from another hub: --hub modelscope, or HF_ENDPOINT with a mirror.",
    )


def _not_found(repo: str, hub: str, hint: str) -> ModelError:
    near = nearest(repo.rpartition("/")[2])
    return ModelError(
        f"There is no model {repo} on {hub}{hint}.",
        fix=f"Check the id's spelling{f'; the alias {near} may be meant' if near else ''}.",
    )


def _unreachable(repo: str, hub: str, other: str) -> ModelError:
    here = f"on a machine with network run: adaptft download {repo}, copy the folder it prints, and name that folder"
    if (variable := optional.offline_by()) and hub == "Hugging Face":
        return ModelError(
            f"{variable} is set, so {hub} is not asked for {repo}, which was not downloaded before.",
            fix=f"Run the command with {variable}=0; or {here} as the model.",
        )
    return ModelError(
        f"{hub} cannot be reached for {repo}, which was not downloaded before and is no folder here.",
        fix=f"Try {other}; or {here} as the model.",
    )


def _unwritable(repo: str, cause: OSError) -> OutputError:
    free = _free_bytes()
    return OutputError(
        f"Cannot store {repo}: {cause.strerror or cause} ({format_bytes(free)} free).",
        fix="Free some space, or set HF_HOME (MODELSCOPE_CACHE) to a folder on a larger disk.",
    )


def _free_bytes() -> int:
    """Free bytes on the disk of the download cache."""
    home = Path(os.environ.get("HF_HOME", Path.home())).expanduser()
    return shutil.disk_usage(home if home.exists() else Path.home()).free


_CLIENTS: dict[Hub, Callable[[str, str | None, list[str]], Path]] = {"hf": _huggingface, "modelscope": _modelscope}
