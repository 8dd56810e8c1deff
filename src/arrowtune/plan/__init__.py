"""Right of the store: which examples make a step, how they share rows, and the micro-batches of each rank."""

from arrowtune.plan.evalplan import EvalPlan
from arrowtune.plan.loader import Loader
from arrowtune.plan.order import Order, Refs
from arrowtune.plan.plan import Plan

__all__ = ["EvalPlan", "Loader", "Order", "Plan", "Refs"]
