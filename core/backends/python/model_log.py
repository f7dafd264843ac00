"""What a model prints and logs, as events of the server's log."""

from __future__ import annotations

import logging

# By the numbers of the library's LogLevel.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class ModelLog:
    """Of one instance. Any thread."""

    def __init__(self, model: str, instance: str) -> None:
        self._model = model
        self._instance = instance
        self._logger = logging.getLogger("trident.model")

    def printed(self, level: int, text: str) -> None:
        """A line that the process printed."""
        self._write(level, text, self._instance, 0)

    def logged(self, number: int, message: str, file: str, line: int) -> None:
        """A message of the model's Logger, of the level of that `number`."""
        level = _LEVELS[number] if 0 <= number < len(_LEVELS) else logging.INFO
        self._write(level, message, file, line)

    def _write(self, level: int, text: str, file: str, line: int) -> None:
        logger = self._logger
        if logger.isEnabledFor(level):
            extra = {"model": self._model, "instance": self._instance}
            logger.handle(logger.makeRecord(logger.name, level, file, line, "%s", (text,), None, extra=extra))
