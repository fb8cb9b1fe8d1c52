"""A backend of dstack's server that rents from the lab's `Cloud`. Imported by `fast_server.py`, before the server.

It takes the type of a backend that needs no further package, so that dstack's own models of configuration, offers
and fleets accept it. Source: dstack 0.22.5, _internal/core/backends/template and vultr.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Client
from typing import Any

import gpuhunt
from dstack._internal.core.backends import configurators
from dstack._internal.core.backends.base.backend import Backend
from dstack._internal.core.backends.base.compute import (
    Compute,
    ComputeWithCreateInstanceSupport,
    ComputeWithFilteredOffersCached,
    ComputeWithInstanceVolumesSupport,
    ComputeWithMultinodeSupport,
    ComputeWithPrivilegedSupport,
    get_user_data,
)
from dstack._internal.core.backends.base.offers import OfferDiskFitter, filter_offers_by_requirements
from dstack._internal.core.backends.vultr.configurator import VultrConfigurator
from dstack._internal.core.errors import NoCapacityError, ProvisioningError
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import (
    Disk,
    Gpu,
    InstanceAvailability,
    InstanceConfiguration,
    InstanceOfferWithAvailability,
    InstanceType,
    Resources,
)
from dstack._internal.core.models.resources import Memory, Range
from dstack._internal.core.models.runs import JobProvisioningData, Requirements

from dstack_hosts.cloud import BACKEND, MachineType

_DISKS = Range[Memory](min=Memory.parse("1GB"), max=Memory.parse("64TB"))


def ask(*words: Any) -> Any:
    """One question to the cloud."""
    with Client(os.environ["LAB_CLOUD"]) as connection:
        connection.send(words)
        return connection.recv()


def offer(kind: MachineType, *, spot: bool, available: bool) -> InstanceOfferWithAvailability:
    """A row of the price list in dstack's words."""
    vendor = gpuhunt.AcceleratorVendor.AMD if kind.amd else gpuhunt.AcceleratorVendor.NVIDIA
    gpus = [Gpu(vendor=vendor, name=kind.gpu[0], memory_mib=kind.gpu[1] << 10)] * kind.gpus if kind.gpu else []
    return InstanceOfferWithAvailability(
        backend=BackendType(BACKEND),
        instance=InstanceType(
            name=kind.name,
            resources=Resources(
                cpus=kind.cpus,
                memory_mib=kind.memory_gib << 10,
                gpus=gpus,
                spot=spot,
                disk=Disk(size_mib=0),  # any, until it is asked for
                cpu_arch=gpuhunt.CPUArchitecture.X86,
            ),
        ),
        region=kind.region,
        price=kind.spot_price if spot else kind.price,
        availability=InstanceAvailability.AVAILABLE if available else InstanceAvailability.NOT_AVAILABLE,
        availability_zones=list(kind.zones),
    )


class LabCompute(
    ComputeWithFilteredOffersCached,
    ComputeWithCreateInstanceSupport,
    ComputeWithInstanceVolumesSupport,
    ComputeWithMultinodeSupport,
    ComputeWithPrivilegedSupport,
    Compute,
):
    """The lab's cloud."""

    def __init__(self) -> None:
        super().__init__()
        self._offers_cache: Any = type(self._offers_cache)(maxsize=10, ttl=1)  # three minutes are too long for a test

    def get_offers_by_requirements(
        self, requirements: Requirements, full_offers: bool, unallocated_resources: bool
    ) -> list[InstanceOfferWithAvailability]:
        found = [offer(kind, spot=spot, available=free) for kind, spot, free in ask("offers")]
        fitter = OfferDiskFitter(requirements)
        matching = (fitter.fit(each, _DISKS) for each in filter_offers_by_requirements(found, requirements))
        return sorted((each for each in matching if each is not None), key=lambda each: each.price)

    def create_instance(
        self,
        instance_offer: InstanceOfferWithAvailability,
        instance_config: InstanceConfiguration,
        placement_group: Any,
    ) -> JobProvisioningData:
        instance, spot = instance_offer.instance, instance_offer.instance.resources.spot
        data = get_user_data(instance_config.get_public_keys(), skip_firewall_setup=True)
        machine = ask("create", instance.name, spot, data)
        if machine is None:
            raise NoCapacityError(f"no capacity for {instance.name}")
        return JobProvisioningData(
            backend=instance_offer.backend,
            instance_type=instance,
            instance_id=machine,
            hostname=None,
            internal_ip=None,
            region=instance_offer.region,
            availability_zone=instance_offer.availability_zones[0],
            price=instance_offer.price,
            username="root",
            ssh_port=22,
            dockerized=True,
            ssh_proxy=None,
            backend_data=None,
        )

    def update_provisioning_data(
        self, provisioning_data: JobProvisioningData, project_ssh_public_key: str, project_ssh_private_key: str
    ) -> None:
        state, address = ask("describe", provisioning_data.instance_id)
        if state == "ended":
            raise ProvisioningError("the machine has ended")
        provisioning_data.hostname = provisioning_data.internal_ip = address

    def terminate_instance(self, instance_id: str, region: str, backend_data: str | None = None) -> None:
        ask("terminate", instance_id)


class LabBackend(Backend):
    """As dstack's server holds it."""

    TYPE = BackendType(BACKEND)
    COMPUTE_CLASS = LabCompute

    def __init__(self) -> None:
        self._compute = LabCompute()

    def compute(self) -> LabCompute:
        return self._compute


class LabConfigurator(VultrConfigurator):
    """Keeps the configuration as Vultr's does, and checks no key."""

    BACKEND_CLASS = LabBackend

    def validate_config(self, config: Any, default_creds_enabled: bool) -> None:
        pass

    def get_backend(self, record: Any) -> LabBackend:
        return LabBackend()


def register() -> None:
    """Put it in the place of the backend whose type it takes; before `features` lists what backends can do."""
    classes = configurators.list_available_configurator_classes()
    classes[[each.TYPE for each in classes].index(LabBackend.TYPE)] = LabConfigurator
    configurators.register_configurator(LabConfigurator)
