"""The policies of ``stoker.scale`` on a virtual clock."""

from stoker.sim.queue import Costs, Delivery, FixedWorkers, Job, Tick, Timeline, simulate

__all__ = ["Costs", "Delivery", "FixedWorkers", "Job", "Tick", "Timeline", "simulate"]
