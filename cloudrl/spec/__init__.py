"""WHAT the user declares: strict frozen values without I/O."""

from cloudrl.spec.base import FrozenDict as FrozenDict
from cloudrl.spec.base import Spec as Spec
from cloudrl.spec.cluster import Cluster as Cluster
from cloudrl.spec.data import DataSet as DataSet
from cloudrl.spec.data import data_argument as data_argument
from cloudrl.spec.fields import Section as Section
from cloudrl.spec.gpu import Gpu as Gpu
from cloudrl.spec.hydra import HydraText as HydraText
from cloudrl.spec.hydra import hydra_text as hydra_text
from cloudrl.spec.hydra import override_argument as override_argument
from cloudrl.spec.hydra import parse_override as parse_override
from cloudrl.spec.hydra import parse_typed as parse_typed
from cloudrl.spec.job import Job as Job
from cloudrl.spec.ports import Port as Port
from cloudrl.spec.services import Artifact as Artifact
from cloudrl.spec.services import Search as Search
from cloudrl.spec.services import Service as Service
from cloudrl.spec.sizes import CountRange as CountRange
from cloudrl.spec.volume import Mount as Mount
from cloudrl.spec.volume import NetworkMount as NetworkMount
from cloudrl.spec.volume import Volume as Volume
