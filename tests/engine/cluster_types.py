"""What a cluster takes: the types of Dynamo's operator, of llm-d's router and of Kubernetes, as far as artefacts use
them. Restated from their sources, strictly: an unknown field, another type, a missing one are refused.

    Dynamo     ai-dynamo/dynamo, deploy/operator/api/v1beta1: dynamographdeployment_types.go,
               dynamocomponentdeployment_types.go, common.go with their kubebuilder rules, and what its webhook asks of
               a component; `make test-engines` holds these types against the seven graphs that ai-dynamo 1.6.1 ships
    llm-d      llm-d-router v0.9.0: apix/config/v1alpha1/endpointpickerconfig_types.go, pkg/epp/config/loader (which
               decodes strictly and makes plugins in the order of the list), the plugins' own parameters
    Kubernetes core/v1 and apps/v1; `make test-engines` repeats this with the schemas of Kubernetes itself
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

DNS_LABEL = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
DNS_NAME = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
LABEL = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)
]
PORT = Annotated[int, Field(ge=1, le=65535)]
QUANTITY = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# -- Kubernetes ------------------------------------------------------------------------------------------------


class FieldRef(Strict):
    fieldPath: str


class EnvSource(Strict):
    fieldRef: FieldRef


class Env(Strict):
    name: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    value: str | None = None
    valueFrom: EnvSource | None = None

    @model_validator(mode="after")
    def one_source(self) -> Self:
        assert self.value is None or self.valueFrom is None, "a value or where it comes from"
        return self


class SecretRef(Strict):
    name: DNS_NAME


class EnvFrom(Strict):
    secretRef: SecretRef


class ContainerPort(Strict):
    containerPort: PORT
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]*[a-z][a-z0-9-]*$", max_length=15)] | None = (
        None
    )


class Resources(Strict):
    limits: dict[str, QUANTITY] = {}
    requests: dict[str, QUANTITY] = {}

    @model_validator(mode="after")
    def whole_gpus(self) -> Self:
        """Extended resources are whole, and a request equals its limit."""
        for amounts in (self.limits, self.requests):
            assert all(v.isdigit() for k, v in amounts.items() if k.startswith("nvidia.com/"))
        for name, amount in self.limits.items():
            if "/" in name:
                assert self.requests.get(name, amount) == amount
        return self


class HttpGet(Strict):
    path: str
    port: PORT


class Probe(Strict):
    httpGet: HttpGet
    periodSeconds: Annotated[int, Field(ge=1)] = 10
    failureThreshold: Annotated[int, Field(ge=1)] = 3


class Mount(Strict):
    name: DNS_LABEL
    mountPath: str


class Container(Strict):
    name: DNS_LABEL
    image: Annotated[str, StringConstraints(min_length=1)]
    command: list[str] = []
    args: list[str] = []
    env: list[Env] = []
    envFrom: list[EnvFrom] = []
    ports: list[ContainerPort] = []
    resources: Resources = Resources()
    startupProbe: Probe | None = None
    readinessProbe: Probe | None = None
    volumeMounts: list[Mount] = []
    workingDir: str | None = None


class InitContainer(Container):
    restartPolicy: Literal["Always"] | None = None


class ClaimRef(Strict):
    claimName: DNS_NAME


class Volume(Strict):
    name: DNS_LABEL
    persistentVolumeClaim: ClaimRef


class PodSpec(Strict):
    containers: Annotated[list[Container], Field(min_length=1)]
    initContainers: list[InitContainer] = []
    volumes: list[Volume] = []

    @model_validator(mode="after")
    def names(self) -> Self:
        everyone = [*self.containers, *self.initContainers]
        assert len({c.name for c in everyone}) == len(everyone), "a container's name twice in a pod"
        mounted = {mount.name for c in everyone for mount in c.volumeMounts}
        assert mounted <= {volume.name for volume in self.volumes}, "a mount without its volume"
        ports = [port.containerPort for c in everyone for port in c.ports]
        assert len(set(ports)) == len(ports), "a port twice in a pod"
        return self


class Metadata(Strict):
    name: DNS_NAME | None = None
    labels: dict[str, LABEL] = {}


class PodTemplate(Strict):
    metadata: Metadata = Metadata()
    spec: PodSpec


class Selector(Strict):
    matchLabels: dict[str, LABEL]


class DeploymentSpec(Strict):
    replicas: Annotated[int, Field(ge=0)]
    selector: Selector
    template: PodTemplate

    @model_validator(mode="after")
    def selects_its_pods(self) -> Self:
        assert self.selector.matchLabels.items() <= self.template.metadata.labels.items()
        return self


class Deployment(Strict):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class ClaimSpec(Strict):
    accessModes: list[Literal["ReadWriteMany", "ReadWriteOnce"]]
    resources: Resources


class Claim(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: Metadata
    spec: ClaimSpec


# -- Dynamo's operator -----------------------------------------------------------------------------------------

MAIN = "main"
SEMANTIC_TAG = re.compile(r":v?\d+\.\d+\.\d+([-.][A-Za-z0-9.]+)?$")


class Component(Strict):
    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", min_length=1, max_length=63),
    ]
    type: Literal["frontend", "worker", "prefill", "decode", "planner", "epp"]
    replicas: Annotated[int, Field(ge=0)] = 1
    podTemplate: PodTemplate

    @model_validator(mode="after")
    def has_its_container(self) -> Self:
        (main,) = [c for c in self.podTemplate.spec.containers if c.name == MAIN]
        assert SEMANTIC_TAG.search(main.image), "an image without a version needs runtimeVersionOverride"
        return self


class GraphSpec(Strict):
    backendFramework: Literal["sglang", "vllm", "trtllm"] | None = None
    components: Annotated[list[Component], Field(max_length=25)]

    @model_validator(mode="after")
    def unique(self) -> Self:
        assert len({c.name.lower() for c in self.components}) == len(self.components)
        assert sum(c.type == "epp" for c in self.components) <= 1
        return self


class Graph(Strict):
    apiVersion: Literal["nvidia.com/v1beta1"]
    kind: Literal["DynamoGraphDeployment"]
    metadata: Metadata
    spec: GraphSpec

    @model_validator(mode="after")
    def names_fit(self) -> Self:
        """Services are called after graph and component: DNS labels."""
        assert self.metadata.name is not None
        for component in self.spec.components:
            assert len(f"{self.metadata.name}-{component.name}") <= 63
        return self


# -- llm-d's router --------------------------------------------------------------------------------------------

PARAMETERS: dict[str, dict[str, Any]] = {
    "queue-scorer": {},
    "encode-filter": {},
    "prefill-filter": {},
    "decode-filter": {},
    "always-disagg-multimodal-decider": {},
    "always-disagg-pd-decider": {},
    "prefix-based-pd-decider": {"nonCachedTokens": int},
    "disagg-profile-handler": {
        "profiles": {"decode": str, "prefill": str, "encode": str},
        "deciders": {"prefill": str, "encode": str},
    },
    "single-profile-handler": {},
}
HANDLERS = ("disagg-profile-handler", "single-profile-handler")


def _typed(given: dict[str, Any], known: dict[str, Any]) -> None:
    for name, value in given.items():
        assert name in known, f"{name} is no parameter"
        if isinstance(known[name], dict):
            _typed(value, known[name])
        else:
            assert isinstance(value, known[name])


class Plugin(Strict):
    type: Literal[tuple(PARAMETERS)]  # type: ignore[valid-type]  # mypy wants the words themselves
    name: str | None = None
    parameters: dict[str, Any] = {}

    @model_validator(mode="after")
    def parameters_are_its_own(self) -> Self:
        _typed(self.parameters, PARAMETERS[self.type])
        return self

    @property
    def called(self) -> str:
        return self.name or self.type


class Reference(Strict):
    pluginRef: str
    weight: float | int | None = None


class Profile(Strict):
    name: Annotated[str, StringConstraints(min_length=1)]
    plugins: list[Reference]


class Picker(Strict):
    apiVersion: Literal["llm-d.ai/v1alpha1"]
    kind: Literal["EndpointPickerConfig"]
    plugins: list[Plugin]
    schedulingProfiles: list[Profile]

    @model_validator(mode="after")
    def as_the_loader_asks(self) -> Self:
        called = [plugin.called for plugin in self.plugins]
        assert len(set(called)) == len(called)
        profiles = [profile.name for profile in self.schedulingProfiles]
        assert len(set(profiles)) == len(profiles)
        for profile in self.schedulingProfiles:
            assert {reference.pluginRef for reference in profile.plugins} <= set(called)
        (handler,) = [plugin for plugin in self.plugins if plugin.type in HANDLERS]
        assert handler.type != "single-profile-handler" or len(profiles) == 1
        made_before = called[: self.plugins.index(handler)]
        for stage, decider in handler.parameters.get("deciders", {}).items():
            assert decider in made_before, "a decider is looked up as the handler is made"
            assert stage in profiles
        if handler.type == "disagg-profile-handler":
            assert "decode" in profiles
        return self
