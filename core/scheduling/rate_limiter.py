"""The rate limiter of a server.

Source: docs/spec/schedulers.md section 3.6.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from trident.core.backends.backend import BackendInstance
from trident.core.config.placement import Placement, ResourceNeed
from trident.core.errors import ConfigInvalid
from trident.core.observability.statistics import ResourceMetrics
from trident.core.options import ResourceLimit

_log = logging.getLogger("trident.lifecycle")


class Resource(NamedTuple):
    """A name in lower case, because case does not count, and a device; None for all devices together.

    Instances on a CPU count as those of device 0, as in Triton.
    """

    name: str
    device: int | None

    @property
    def place(self) -> str:
        """The device as a label of metrics; empty for a global resource."""
        return "" if self.device is None else str(self.device)


# How many copies of each resource an execution holds, at least one of each.
Needs = Mapping[Resource, int]


def resource_of(need: ResourceNeed, placement: Placement) -> Resource:
    return Resource(need.name.lower(), None if need.is_global else placement.device_id)


def needs_of(placement: Placement) -> dict[Resource, int]:
    """Return the resources of each execution of the instance. The last count of a duplicate resource is used."""
    return {resource_of(need, placement): need.count for need in placement.limit.needs}


class Bid(NamedTuple):
    """An instance that waits. The smallest `position` is first; of equal ones, the smallest `arrival`."""

    position: int
    arrival: int
    needs: Needs


def admitted(bids: Sequence[Bid], free: Mapping[Resource, int]) -> list[int]:
    """The indices of `bids` that may run now, in their order, if there are `free` copies of the resources.

    One that cannot run yet keeps what it needs from those behind it, so that it is never overtaken for good by others
    that need less. It does not hold up those that need other resources.
    """
    left = dict(free)
    chosen: list[int] = []
    for index in sorted(range(len(bids)), key=lambda index: bids[index][:2]):
        needs = bids[index].needs
        if all(left.get(resource, 0) >= count for resource, count in needs.items()):
            chosen.append(index)
        for resource, count in needs.items():
            left[resource] = left.get(resource, 0) - count
    return chosen


class ReservationState(Enum):
    """`next` are the states that may follow."""

    next: tuple[ReservationState, ...]

    IDLE = "wants nothing"
    WAITING = "waits for its resources"
    HELD = "holds its resources"


IDLE, WAITING, HELD = ReservationState

IDLE.next = (WAITING, HELD)  # its instance has work
WAITING.next = (HELD, IDLE)  # it is the next; there is nothing to execute
HELD.next = (IDLE, WAITING)  # the execution has ended; there is more work


# What an instance's load counts as, in executions: in Triton its initialization and its warmup are two. An instance
# that was idle makes up for as many at most.
LOAD_EXECUTIONS = 2


class Reservation:
    """Any thread, one at a time except for `interrupt`. Every attribute is guarded by the limiter's lock.

    `position` orders the instances that wait: executions times priority, so an instance of priority 2 gets
    half the turns of one of priority 1. `arrival` orders equal turns. `has_more` tells, when an
    execution ends, whether the instance has more work: then it waits again at once, and is not overtaken by one with a
    later position.
    """

    def __init__(self, name: str, needs: Needs, priority: int, lock: threading.Lock, group: ResourceGroup) -> None:
        self.name = name
        self.needs = needs
        self.priority = priority
        self.group = group
        self.position = LOAD_EXECUTIONS * priority
        self.arrival = 0
        self.state = IDLE
        self.has_more: Callable[[], bool] = lambda: False
        self._lock = lock
        self._changed = threading.Condition(lock)

    def request(self) -> bool:
        """Take the resources now, or wait for them, see `wait`. Returns whether they are held."""
        with self._lock:
            if self.state is IDLE:
                self.group.stage(self)
                self.group.admit()
            return self.state is HELD

    def try_take(self) -> bool:
        """Take the resources now, or not at all. Returns whether they are held."""
        with self._lock:
            if self.state is IDLE:
                self.group.stage(self)
                self.group.admit()
                if self.state is WAITING:
                    self._abandon()
            return self.state is HELD

    def wait(self) -> bool:
        """Block until the resources are held, or until `interrupt`. Returns whether the resources are held."""
        with self._lock:
            self._changed.wait_for(lambda: self.state is not WAITING)
            return self.state is HELD

    def interrupt(self) -> None:
        with self._lock:
            if self.state is WAITING:
                self._abandon()

    def withdraw(self) -> None:
        """Release or stop waiting: there is nothing to execute."""
        with self._lock:
            if self.state is WAITING:
                self._abandon()
            elif self.state is HELD:
                self.move(IDLE)
                self.group.admit()

    def end(self) -> None:
        with self._lock:
            self.position += self.priority
            if self.has_more():
                self.group.stage(self)
            else:
                self.move(IDLE)
            self.group.admit()

    def move(self, state: ReservationState) -> None:
        """Under the lock. Raises RuntimeError for a move that the states do not allow, which is a bug."""
        if state not in self.state.next:
            raise RuntimeError(f"the reservation of '{self.name}' cannot go from {self.state} to {state}")
        was_waiting = self.state is WAITING
        self.state = state
        if was_waiting:
            self._changed.notify_all()

    def _abandon(self) -> None:
        self.move(IDLE)
        self.group.admit()  # later ones may have the resources that it withheld


class ResourceGroup:
    """The reservations that compete for the same resources. Every method is called under the limiter's lock.

    Instances that share nothing are in different groups, so that the turns of one say nothing about another's. `limits`
    are those of the resources of its reservations.

    `clock` is the latest position that was admitted. A new wait begins there, less two executions of its own, so
    that an instance that was loaded or idle for long does not make up for all executions of others meanwhile
    (start-time fair queueing).
    """

    def __init__(self, reservations: Iterable[Reservation] = (), clock: int = 0) -> None:
        self.reservations = list(reservations)
        self.limits: Mapping[Resource, int] = {}
        self.clock = clock
        self._arrivals = max((reservation.arrival for reservation in self.reservations), default=0)
        for reservation in self.reservations:
            reservation.group = self

    def stage(self, reservation: Reservation) -> None:
        """IDLE or HELD -> WAITING"""
        self._arrivals += 1
        reservation.arrival = self._arrivals
        reservation.position = max(reservation.position, self.clock - LOAD_EXECUTIONS * reservation.priority)
        reservation.move(WAITING)

    def admit(self) -> None:
        """WAITING -> HELD for those that may execute now."""
        waiting = [reservation for reservation in self.reservations if reservation.state is WAITING]
        if not waiting:
            return
        for index in admitted(
            [Bid(reservation.position, reservation.arrival, reservation.needs) for reservation in waiting], self.free()
        ):
            reservation = waiting[index]
            self.clock = max(self.clock, reservation.position)
            reservation.move(HELD)

    def free(self) -> dict[Resource, int]:
        """The free copies; below zero where a limit sank while more was held."""
        free = dict(self.limits)
        for reservation in self.reservations:
            if reservation.state is HELD:
                for resource, count in reservation.needs.items():
                    free[resource] = free.get(resource, 0) - count
        return free


# Source: docs/spec/schedulers.md section 3.6, docs/spec/server-options.md (rate-limit-resource).


def explicit_limit(resource: Resource, options: Iterable[ResourceLimit]) -> int | None:
    """The limit that the options set; None if none of them names the resource.

    Of several options that apply the largest counts. A device that no option covers has no copies of a resource that
    others name.
    """
    named = [limit for limit in options if limit.name.lower() == resource.name]
    if not named:
        return None
    return max(
        (limit.count for limit in named if resource.device is None or limit.device in (None, resource.device)),
        default=0,
    )


def resource_limits(all_needs: Sequence[Needs], options: Iterable[ResourceLimit]) -> Mapping[Resource, int]:
    """The limit of each resource that one of `all_needs` has: explicit, or else what suffices for the neediest."""
    options = tuple(options)
    limits: dict[Resource, int] = {}
    for needs in all_needs:
        for resource, count in needs.items():
            limits[resource] = max(limits.get(resource, 0), count)
    for resource in limits:
        explicit = explicit_limit(resource, options)
        if explicit is not None:
            limits[resource] = explicit
    return limits


def check_limits(placement: Placement, model: str, others: Iterable[Needs], options: Iterable[ResourceLimit]) -> None:
    """Raise ConfigInvalid, with Triton's text, for an instance that could never run beside those with `others`."""
    options = tuple(options)
    taken = {resource for needs in others for resource in needs}
    for need in placement.limit.needs:
        resource = resource_of(need, placement)
        limit = explicit_limit(resource, options)
        if limit is not None and limit < need.count:
            raise ConfigInvalid(
                f'Resource count for "{need.name}" is limited to {limit} which will prevent scheduling of one or more '
                f"model instances, the minimum required count is {need.count}",
                hint="ask for less in instance_group.rate_limiter, or start the server with "
                f"--rate-limit-resource=<name>:{need.count} or more",
                model=model,
            )
        own = {resource_of(other, placement) for other in placement.limit.needs}
        if any(
            other.name == resource.name and (other.device is None) != (resource.device is None) for other in taken | own
        ):
            raise ConfigInvalid(
                f'Resource "{need.name}" is present as both global and device-specific resource in the model '
                "configuration.",
                hint="give it the same 'global' in all models that use it, or another name",
                model=model,
            )


class RateLimiter:
    """Knows the instances of all models that hold resources. Any thread; one short lock for all reservations.

    `options` are the explicit limits. A resource that they do not name has as many copies as the neediest instance
    holds; that changes with the instances.
    """

    def __init__(self, options: Iterable[ResourceLimit] = ()) -> None:
        self._options = tuple(options)
        self._lock = threading.Lock()
        self._groups: list[ResourceGroup] = []  # guarded by the lock

    def add(self, placement: Placement, model: str) -> Reservation | None:
        """The reservation of a new instance; None if it needs nothing, and so never waits.

        Raises ConfigInvalid, with Triton's text, if it needs more than there can be; then nothing has changed.
        """
        needs = needs_of(placement)
        if not needs:
            return None
        with self._lock:
            others = [reservation.needs for group in self._groups for reservation in group.reservations]
            check_limits(placement, model, others, self._options)
            joined = [group for group in self._groups if not needs.keys().isdisjoint(group.limits)]
            group = ResourceGroup(
                [reservation for other in joined for reservation in other.reservations],
                max((other.clock for other in joined), default=0),
            )
            reservation = Reservation(placement.name, needs, placement.limit.priority, self._lock, group)
            group.reservations.append(reservation)
            self._groups = [other for other in self._groups if other not in joined] + [group]
            self._limit(group)
            return reservation

    def remove(self, reservation: Reservation) -> None:
        with self._lock:
            group = reservation.group
            group.reservations.remove(reservation)
            if not group.reservations:
                self._groups.remove(group)
            else:
                self._limit(group)

    def lacking(self, holder: Placement, others: Iterable[Placement]) -> str:
        """The resource for which each of `others` must wait as long as an execution of `holder` runs.

        "" if one of them can run meanwhile, once what further executions hold is free.
        """
        held = needs_of(holder)
        with self._lock:
            limits = {resource: limit for group in self._groups for resource, limit in group.limits.items()}
        lacking = ""
        for other in others:
            needs = needs_of(other)
            short = (at for at, count in needs.items() if at in held and limits.get(at, 0) - held[at] < count)
            first = next(short, None)
            if first is None:
                return ""
            lacking = lacking or first.name
        return lacking

    def _limit(self, group: ResourceGroup) -> None:
        group.limits = resource_limits([reservation.needs for reservation in group.reservations], self._options)
        group.admit()

    def metrics(self) -> tuple[ResourceMetrics, ...]:
        found: list[ResourceMetrics] = []
        with self._lock:
            for group in self._groups:
                free = group.free()
                for resource, limit in group.limits.items():
                    waiting = sum(
                        reservation.state is WAITING and resource in reservation.needs
                        for reservation in group.reservations
                    )
                    found.append(
                        ResourceMetrics(
                            resource=resource.name,
                            device=resource.place,
                            limit=limit,
                            held=limit - free[resource],
                            waiting=waiting,
                        )
                    )
        return tuple(sorted(found, key=lambda each: (each.resource, each.device)))


class InstanceReservations:
    """Any thread. Without a `limiter` no instance has a reservation."""

    def __init__(self, limiter: RateLimiter | None = None) -> None:
        self._limiter = limiter
        self._lock = threading.Lock()
        self._reservations: dict[int, Reservation] = {}  # by the identity of the instance; guarded by the lock
        self._has_warned = False

    def add(self, instance: BackendInstance, model: str) -> None:
        """Let the limiter know a new instance. Raises ConfigInvalid if it needs more than there can be."""
        if self._limiter is None:
            if instance.placement.limit.needs and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "model '%s' has a rate_limiter, but the server has none: start it with "
                    "--rate-limit=execution_count",
                    model,
                )
            return
        reservation = self._limiter.add(instance.placement, model)
        if reservation is not None:
            with self._lock:
                self._reservations[id(instance)] = reservation

    def of(self, instance: BackendInstance) -> Reservation | None:
        """The reservation of an instance; None if its executions hold nothing."""
        with self._lock:
            return self._reservations.get(id(instance))

    def remove(self, instance: BackendInstance) -> None:
        with self._lock:
            reservation = self._reservations.pop(id(instance), None)
        if reservation is not None and self._limiter is not None:
            self._limiter.remove(reservation)

    @contextmanager
    def held(self, instance: BackendInstance) -> Iterator[None]:
        """Hold the resources of an execution of `instance`, while no scheduler has it. Blocks until it may execute.

        The instance's position stays: LOAD_EXECUTIONS count what a load executes.
        """
        reservation = self.of(instance)
        if reservation is None:
            yield
            return
        if not reservation.request():
            reservation.wait()
        try:
            yield
        finally:
            reservation.withdraw()
