"""Warnings: `warn` names the line of the user."""

from __future__ import annotations

import sys
import warnings

from orderdp.errors import NonFiniteLossError, NonFiniteLossWarning

__all__ = ["warn", "warn_nonfinite"]

# Packages whose frames lie between a user's line and a warning; frames of Python's own library do, too.
_BETWEEN = {
    *("orderdp", "orderdp_paper", "torch", "torchdata", "lightning", "pytorch_lightning", "lightning_fabric"),
    *("accelerate", "transformers", "composer", "ray", "timm"),
}


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the user's line: the innermost frame outside this library, torch and the frameworks.

    If there is no such frame (the program is a framework's own command), the warning names the innermost frame outside
    this library.

    Args:
        message: What is wrong, and what to do.
        category: The class of the warning.
    """
    level, outside = 1, 0
    frame = sys._getframe(1)
    while True:
        level += 1
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        outside = outside or (0 if package.startswith("orderdp") else level)
        if package not in _BETWEEN and package not in sys.stdlib_module_names:
            break
        if frame.f_back is None:
            level = outside or level
            break
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level)


def warn_nonfinite(count: int, *, as_error: bool) -> None:
    """Warn, or raise, if losses of the last epoch were not finite.

    Args:
        count: Number of non-finite losses.
        as_error: Whether to raise an error in place of a warning.
    """
    if not count:
        return
    message = (
        f"{count} losses of the last epoch were NaN or infinite; their samples keep their previous scores. Check the "
        "learning rate and the data."
    )
    if as_error:
        raise NonFiniteLossError(message + ' With on_nan="warn" training continues.')
    warn(message, NonFiniteLossWarning)
