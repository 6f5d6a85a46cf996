"""The axis values that give the best response under a cost budget, with their uncertainty."""

from planner.recipe.curves import RecipePart
from planner.recipe.problem import Box, Posynomial
from planner.recipe.recipes import optimise_recipe, recipe_of_mixture, recipes_of_mixture
from planner.recipe.result import JointRecipe, RecipePosterior, require_affordable, require_reliable
from planner.recipe.rounding import AllowedValues

__all__ = [
    "AllowedValues",
    "Box",
    "JointRecipe",
    "Posynomial",
    "RecipePart",
    "RecipePosterior",
    "optimise_recipe",
    "recipe_of_mixture",
    "recipes_of_mixture",
    "require_affordable",
    "require_reliable",
]
