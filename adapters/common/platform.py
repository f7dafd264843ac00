"""A platform, as one row of the registry: how it is detected, its settings and its application.

A new platform is a subclass of `Platform` in one module: adapters/platforms.py has those of this project, and the
variable TRIDENT_PLATFORMS names others. The server reads everything that is special about a platform from its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from trident.adapters.common.options import OptionText, OptionValues, SettingRow

if TYPE_CHECKING:  # The modules that serve are heavy, and the help text needs the rows.
    from trident.core.engine.protocol import Engine
    from trident.core.frontend.bridge import Bridge
    from trident.core.frontend.default_model import DefaultModel
    from trident.core.http.admin import MetricsPage
    from trident.core.http.application import V2Application
    from trident.core.http.front_end import HttpOptions

PLATFORM = "platform"
"""The source of a value that a platform gives by default, and not in a variable."""


class Evidence(NamedTuple):
    """The variable or directory that shows the platform. A directory may exist by chance, which a variable does not."""

    source: str
    may_be_chance: bool = False


class CommandLineText(NamedTuple):
    """Arguments in the environment, and the variable that contains them."""

    arguments: Sequence[str]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTexts:
    """The settings in a container's environment: options, then whole arguments, of which later ones win.

    A model repository that one of the `options` sets may be a single model. `without_effect` are variables that change
    nothing here; `warnings` are for the log.
    """

    options: Sequence[OptionText] = ()
    arguments: Sequence[CommandLineText] = ()
    without_effect: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PlatformSettings:
    """The settings of a platform whose port is open, as far as the server itself uses them.

    `thread_count` is as --http-thread-count. `default_model` is "" for the only loaded model. With `multi_model` the
    platform says at run time which models to load. All other ports must lie in `safe_port_range`, if there is one.
    `public_groups` are the groups of v2 routes that the port serves as well. `health_route` answers 200 when the
    container is healthy. `sources` gives the source of each setting
    that does not have its default value.
    """

    port: int = 8080
    thread_count: int = 8
    default_model: str = ""
    multi_model: bool = False
    safe_port_range: tuple[int, int] | None = None
    public_groups: tuple[str, ...] = ()
    health_route: str = "/v2/health/ready"
    sources: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> list[SettingRow]:
        """The rows of a table at the start, of settings that are not options of the server."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The parts of the server for the application of a platform."""

    engine: Engine
    bridge: Bridge
    options: HttpOptions
    metrics_page: MetricsPage

    def default_model(self, name: str, cure: str) -> DefaultModel:
        """The model `name`, "" for the only loaded one; `cure` as in DefaultModel."""
        from trident.core.frontend.default_model import DefaultModel

        on_demand = self.options.control_mode == "demand"
        return DefaultModel(self.engine, self.bridge, name, cure, on_demand=on_demand)


class Platform:
    """One platform. A subclass sets the attributes and overrides what is different there.

    `name` is the value of --platform, `title` what people call it, `service` Triton's name of its service in the log.
    `options` is a `group` of the options that only this platform has; of their fields `switch` opens its port, and
    `port` is its number. `shown_by` completes "auto is NAME if ..." in the help of --platform, and `help` is a sentence
    for the help of serve. `required_model` is the option with the default model, if the container is not healthy
    without that. For load tests: `infer_route` is the path of a request to the default model, on a server with
    `infer_variables`, and `binary_type` the media type of one with binary tensors, "" if it is the v2 protocol's.
    """

    name: str
    title: str
    service: str
    options: type[Any]
    switch: str
    port: str
    shown_by: str
    help: str = ""
    required_model: str = ""
    infer_route: str = ""
    infer_variables: Mapping[str, str] = MappingProxyType({})
    binary_type: str = ""

    def evidence(self, environ: Mapping[str, str], given: OptionValues) -> Evidence | None:
        """The evidence for a container of the platform, or None."""
        raise NotImplementedError

    def texts(self, environ: Mapping[str, str], *, on_platform: bool) -> PlatformTexts:
        """The settings in `environ`; `on_platform` in a container of the platform. Raises ConfigInvalid."""
        return PlatformTexts()

    def settings(self, given: OptionValues, environ: Mapping[str, str], *, on_platform: bool) -> PlatformSettings:
        """The settings, once all sources of options have been read. May set further options in `given`.

        Raises ConfigInvalid.
        """
        raise NotImplementedError

    def application(self, settings: Any, host: Host) -> V2Application:
        """The application of the platform's port, with what `settings` returned."""
        raise NotImplementedError
