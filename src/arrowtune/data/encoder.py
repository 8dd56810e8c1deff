"""What encodes the units of a recipe."""

from __future__ import annotations

from arrowtune.data.encode import UnitEncoder
from arrowtune.data.formats import PRETOKENIZED
from arrowtune.data.pretokenized.encode import PretokenizedEncoder
from arrowtune.data.recipe import Recipe


def encoder_for(recipe: Recipe) -> UnitEncoder:
    """The encoder of a recipe's format."""
    return PretokenizedEncoder(recipe) if recipe.format == PRETOKENIZED else UnitEncoder(recipe)
