"""The settings of a run that takes more than one process."""

from dataclasses import dataclass

from gruppo.fields import Checked, setting


@dataclass(frozen=True)
class ScaleConfig(Checked):
    """How many processes, what they share, and where they are."""

    ranks: int = setting(1, low=1, high=1024)  # processes that learn together, one GPU each, with sharded weights
    address: str = setting("", added=True)  # of Ray: local starts one here, auto or HOST:PORT joins one; empty: no Ray
    samplers: int = setting(0, low=0, high=1024, added=True)  # actors of Ray that sample; 0: the first rank does
    judges: int = setting(0, low=0, high=1024, added=True)  # actors of Ray that score answers; 0: the first rank does
    worlds: int = setting(0, low=0, high=1024, added=True)  # actors of Ray that hold environments; 0: the first rank
    cpus: float = setting(1.0, low=0.01, added=True)  # processors that Ray sets aside for each actor

    def unplaced(self) -> str:
        """Why nothing could be placed like this, with the remedy; "" if it can. Settings come one by one, so this is
        asked when all are there."""
        actors = [f"scale.{name}={n}" for name in ("samplers", "judges", "worlds") if (n := getattr(self, name))]
        if actors and not self.address:
            return (
                f"{' '.join(actors)} without scale.address: actors live in a cluster of Ray, and none is named. Add "
                "scale.address=local (this machine), auto (the cluster that runs here) or HOST:PORT."
            )
        if self.address and not actors and self.ranks == 1:
            return (
                f"scale.address={self.address} with one rank, and no sampler, judge or world: nothing would be placed "
                "there. Add scale.ranks=2, scale.samplers=1, scale.judges=1 or scale.worlds=1, or leave it out."
            )
        if "://" in self.address:
            return (
                f"scale.address={self.address}: this process must be part of the cluster, since it learns and serves "
                "weights, and Ray Client is not. Start it on a machine of the cluster with scale.address=auto."
            )
        return ""
