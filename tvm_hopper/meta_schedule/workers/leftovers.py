"""Remove folders of killed processes: `PREFIX` + process id + `_...`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def remove_stale(folder: Path, prefix: str) -> None:
    """Remove this user's folders of a prefix whose process is gone."""
    for path in folder.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).partition("_")[0]
        if not pid.isdigit() or _is_running(int(pid)):
            continue
        if path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
