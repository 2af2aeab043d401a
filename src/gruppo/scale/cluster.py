"""A run on a cluster of Ray: this process is the run and its first rank; all samplers, judges, worlds, and the other
ranks are actors.

Ray starts, places, watches and restarts them. What is here: what a run asks for (`plan`), what is said if the cluster
has not got it, and what an actor is for a run. All but ranks are asked questions that hold everything that they need,
so Ray may restart one that died and ask it again (`RESTARTED`). A rank holds a part of the weights: if one dies, the
run ends, and says how to go on.
"""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from gruppo.scale.config import ScaleConfig
from gruppo.tasks.imports import library
from gruppo.train.config import RunConfig

RETRIES = 3  # times that one question is asked again because its actor died
RESTARTED = {"max_restarts": -1, "max_task_retries": RETRIES}  # what Ray does by itself
SAID = 5.0  # seconds of waiting for resources before the user is told, then ever more rarely
PATIENCE = 600.0  # seconds of waiting for resources that others use
START = 300.0  # seconds in which the process of a rank starts
NOTICED = 5.0  # seconds in which a run that has lost a rank may notice and end by itself
AGAIN = 3.0  # seconds between two signals to one that has not


@dataclass(frozen=True)
class Part:
    """What one actor asks for."""

    name: str
    cpus: float
    gpus: float = 0.0
    node: str = ""  # the machine on which it must be

    @property
    def bundle(self) -> dict[str, float]:
        pinned = {f"node:{self.node}": 0.001} if self.node else {}
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {}) | pinned


def plan(scale: ScaleConfig, cuda: bool, node: str) -> list[Part]:
    """Everything that is placed. The first rank is this process: Ray is to know of it if it has a GPU."""
    gpu = 1.0 if cuda else 0.0
    ranks = [Part("rank 0", scale.cpus, gpu, node)] if cuda else []
    ranks += [Part(f"rank {i}", scale.cpus, gpu) for i in range(1, scale.ranks)]
    samplers = [Part(f"sampler {i}", scale.cpus, gpu) for i in range(scale.samplers)]
    judges = [Part(f"judge {i}", scale.cpus) for i in range(scale.judges)]
    return [*ranks, *samplers, *judges, *(Part(f"world {i}", scale.cpus) for i in range(scale.worlds))]


def lacking(parts: Sequence[Part], has: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """{resource: (asked for, there)} of what is not there."""
    asked = {name: sum(part.bundle.get(name, 0.0) for part in parts) for name in ("CPU", "GPU")}
    return {name: (n, has.get(name, 0.0)) for name, n in asked.items() if n > has.get(name, 0.0) + 1e-9}


def _refuse(parts: Sequence[Part], scale: ScaleConfig, has: Mapping[str, float]) -> None:
    missing = lacking(parts, has)
    if not missing:
        return
    said = " and ".join(f"{asked:g} {name} where there {_are(there)}" for name, (asked, there) in missing.items())
    each = int(100 * missing["CPU"][1] / len(parts)) / 100 if "CPU" in missing else 0.0
    fewer = f"scale.cpus={each:g}, or " if each else ""
    raise ValueError(
        f"scale.address={scale.address}: the run asks for {said} ({', '.join(p.name for p in parts)}), so it would "
        f"wait for ever. Use {fewer}fewer scale.ranks, scale.samplers, scale.judges or scale.worlds, or a larger "
        "cluster: ray start --address=HOST:PORT on each machine, and scale.address=auto."
    )


def _are(n: float) -> str:
    return "are none" if not n else f"is {n:g}" if n == 1 else f"are {n:g}"


@dataclass
class Cluster:
    """The cluster of a run while it is open."""

    ray: Any
    config: RunConfig
    say: Callable[[str], None]
    parts: list[Part]
    group: Any = None  # Ray's placement group: one bundle for each part
    actors: list[Any] = field(default_factory=list[Any])
    team: Any = None  # the samplers
    over: threading.Event = field(default_factory=threading.Event)

    def actor(self, name: str, kind: type, *given: Any, **options: Any) -> Any:
        """An actor in the place of the part of this name."""
        index = next(i for i, part in enumerate(self.parts) if part.name == name)
        where = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self.group, index)
        part = self.parts[index]
        made = self.ray.remote(kind).options(
            num_cpus=part.cpus, num_gpus=part.gpus, scheduling_strategy=where, **options
        )
        self.actors.append(made.remote(*given))
        return self.actors[-1]

    @property
    def here(self) -> dict[str, Any]:
        """What all processes of the run have in common: the folder (names of files may be relative) and threads."""
        return {"folder": os.getcwd(), "threads": self.config.threads or torch.get_num_threads()}

    def place(self) -> None:
        """Sets everything aside; says what it waits for, and at the end where everything is."""
        self.group = self.ray.util.placement_group([p.bundle for p in self.parts], strategy="PACK")
        began, wait = time.monotonic(), SAID
        while not self.group.wait(wait):
            spent = time.monotonic() - began
            said = self._waits(spent)
            if spent > PATIENCE:
                raise ValueError(
                    f"{said} Free them, or ask for less: scale.samplers, scale.judges, scale.worlds, scale.cpus."
                )
            self.say(said)
            wait = min(2 * wait, 60.0)
        self.say(f"Ray at {self.ray.get_runtime_context().gcs_address}: {self._where()}")

    def _waits(self, spent: float) -> str:
        free = self.ray.available_resources()
        asked = {name: sum(p.bundle.get(name, 0.0) for p in self.parts) for name in ("CPU", "GPU")}
        words = ", ".join(f"{n:g} {name} ({free.get(name, 0.0):g} free)" for name, n in asked.items() if n)
        return f"waiting for resources of Ray for {spent:.0f} s: {words}; others use the rest."

    def _where(self) -> str:
        hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in self.ray.nodes()}
        placed = self.ray.util.placement_group_table(self.group)["bundles_to_node_id"]
        by_host: dict[str, list[str]] = {socket.gethostname(): ["rank 0"]}
        for i, part in enumerate(self.parts):
            if part.name != "rank 0":
                by_host.setdefault(hosts.get(placed[i], "?"), []).append(part.name)
        return "; ".join(f"{', '.join(names)} on {host}" for host, names in by_host.items())

    def close(self) -> None:
        self.over.set()
        for actor in self.actors:
            self.ray.kill(actor)
        if self.group is not None:
            self.ray.util.remove_placement_group(self.group)


_OPEN: list[Cluster] = []


def current() -> Cluster | None:
    """The cluster of the run of this process."""
    return _OPEN[-1] if _OPEN else None


def engine_at(run: Any, config: Any, here: Any) -> Any:
    """The engine of a run: this one, or sampler actors with its settings."""
    if (cluster := current()) is None or not run.config.scale.samplers:
        return here
    from gruppo.scale.samplers import samplers_of

    return samplers_of(cluster, run, config, here)


def judge_at(run: Any, here: Any) -> Any:
    """The judge of a run: this one, which has not started, or judge actors."""
    if (cluster := current()) is None or not run.config.scale.judges:
        return here
    from gruppo.scale.judges import judges_of

    return judges_of(cluster, run, here)


def play_at(run: Any, here: Any) -> Any:
    """How a run plays: as this does, or in worlds that are actors."""
    if (cluster := current()) is None or not run.config.scale.worlds:
        return here
    from gruppo.scale.worlds import worlds_of

    return worlds_of(cluster, run, here)


def told(error: Any, who: str, remedy: str) -> Exception:
    """What an actor raised, as it raised it; if it died again and again, a sentence."""
    if isinstance(cause := getattr(error, "cause", None), Exception):
        return cause
    first = str(error).splitlines()[0].rstrip(".")
    return ValueError(f"{who} died {RETRIES + 1} times over the same question: {first}. {remedy}")


def refuse(config: RunConfig) -> None:
    """Refuses what would fail on every cluster; none is looked for."""
    from gruppo.scale.samplers import refusals
    from gruppo.scale.worlds import refused

    if said := config.scale.unplaced() or refused(config):
        raise ValueError(said)
    if config.scale.address:
        _ray(config.scale)
    if config.scale.samplers and (found := refusals(config.method)):
        raise ValueError("\n".join(found))


def _ray(scale: ScaleConfig) -> Any:
    return library("ray", f"scale.address={scale.address} asks for a cluster of it", "ray")


async def answered(ray: Any, reference: Any, who: str, remedy: str) -> Any:
    """What an actor answers. If nobody waits for it any more, Ray is told."""
    try:
        return await reference
    except asyncio.CancelledError:
        ray.cancel(reference)
        raise
    except ray.exceptions.RayError as error:
        raise told(error, who, remedy) from error


@contextmanager
def opened(config: RunConfig, say: Callable[[str], None]) -> Generator[None]:
    """Around a run: without scale.address nothing; else its actors exist inside, and none of them is left after it."""
    if not config.scale.address:
        yield
        return
    ray = _ray(config.scale)
    began = not ray.is_initialized()
    try:
        if began:
            _join(ray, config.scale.address)
        cuda = config.model.device.startswith("cuda") or (config.model.device == "auto" and torch.cuda.is_available())
        cluster = Cluster(ray, config, say, plan(config.scale, cuda, ray.util.get_node_ip_address()))
        _refuse(cluster.parts, config.scale, ray.cluster_resources())
        try:
            cluster.place()
            _OPEN.append(cluster)
            with _ranks(cluster):
                yield
        finally:
            _OPEN[:] = [c for c in _OPEN if c is not cluster]
            cluster.close()
    finally:
        if began:
            ray.shutdown()


def _join(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run of ours reports nothing to anybody
    more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level="ERROR", **more)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has put an exit there, and a run saves its step
    except Exception as error:  # of any kind: a node that does not start in time is a bare Exception
        if address == "local":
            raise ValueError(
                f"scale.address=local: Ray could not start on this machine ({str(error).splitlines()[0]}). Try again "
                "when it is less busy, or leave scale.address, scale.samplers, scale.judges and scale.worlds out."
            ) from error
        raise ValueError(
            f"scale.address={address}: no cluster of Ray answers there ({str(error).splitlines()[0]}). Start one with  "
            "ray start --head  on this machine, or use scale.address=local."
        ) from error


# ---- ranks


class Rank:
    """An actor that is a rank: what `torchrun` would start on another machine."""

    def __init__(self, here: Mapping[str, Any], env: Mapping[str, str]) -> None:
        at_home(here)
        os.environ.update(env)

    def ready(self) -> int:
        """Its process."""
        import gruppo.scale.ranks  # noqa: F401 # what takes long is done before anybody waits for it

        return os.getpid()

    def follow(self) -> None:
        from gruppo.scale.ranks import follow

        follow()


def at_home(here: Mapping[str, Any]) -> None:
    """In the process of an actor: as in the process of the run."""
    if os.path.isdir(here["folder"]):
        os.chdir(here["folder"])
    torch.set_num_threads(here["threads"])


@contextmanager
def _ranks(cluster: Cluster) -> Generator[None]:
    """This process is the first rank, and actors are the others; as under `torchrun`."""
    size, gpu = cluster.config.scale.ranks, _seat(cluster)
    if size == 1:
        yield
        return
    ray = cluster.ray
    address = ray.util.get_node_ip_address()
    env = {"MASTER_ADDR": address, "MASTER_PORT": str(_free_port(address)), "WORLD_SIZE": str(size)}
    env |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # Ray shows the process of an actor its own GPU alone
    actors = [cluster.actor(f"rank {i}", Rank, cluster.here, {**env, "RANK": str(i)}) for i in range(1, size)]
    try:
        ray.get([actor.ready.remote() for actor in actors], timeout=START)
    except ray.exceptions.RayError as error:
        raise ValueError(f"a rank could not start: {error}. Is gruppo installed on every machine?") from error
    before = {name: os.environ.get(name) for name in (*env, "RANK")}
    os.environ.update({**env, "RANK": "0", "LOCAL_RANK": str(gpu)})
    threading.Thread(target=_watch, args=(cluster, actors), name="ranks", daemon=True).start()
    well = False
    try:
        yield
        well = True
    finally:
        cluster.over.set()
        _part(well)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _part(well: bool) -> None:
    """The other ranks end by a word; if the run has failed, they may not hear it, and Ray ends them."""
    import torch.distributed as dist

    from gruppo.scale.ranks import opened

    if dist.is_initialized():
        channel = opened()
        channel.ended = channel.ended or not well
        channel.end()
        dist.destroy_process_group()


class Seat:
    """An actor that holds the place of this process, the first rank."""

    def gpu(self) -> int:
        return int(library("ray", "this is an actor of it", "ray").get_gpu_ids()[0])


def _seat(cluster: Cluster) -> int:
    """The GPU that Ray has set aside for this process; 0 without any."""
    if cluster.parts[0].name != "rank 0":
        return 0
    found = int(cluster.ray.get(cluster.actor("rank 0", Seat).gpu.remote()))
    torch.cuda.set_device(found)
    return found


def _watch(cluster: Cluster, actors: Sequence[Any]) -> None:
    """Waits for a rank that ends before the run does. It ends the run, which would notice only when it learns next."""
    ray, asked = cluster.ray, {actor.follow.remote(): i for i, actor in enumerate(actors, 1)}
    while not cluster.over.is_set():
        done, _ = ray.wait(list(asked), timeout=0.5)
        if not done:
            continue
        if cluster.over.wait(1.0):  # a run that ends has its ranks end first
            return
        cluster.say(f"rank {asked[done[0]]} of {len(actors) + 1} is gone, and the run ends with it")
        for seconds in (NOTICED, AGAIN, AGAIN):  # by itself, once it learns; else as by Ctrl-C, and again
            if cluster.over.wait(seconds):
                return
            os.kill(os.getpid(), signal.SIGINT)
        return


def _free_port(address: str) -> int:
    with socket.socket() as s:
        s.bind((address, 0))
        return s.getsockname()[1]
