"""Recipes: the YAML file that one training run is made from; one part a file."""

from dspine.config.build import DatasetPromptsRecipe, NanoPromptsRecipe, NanoTargetRecipe
from dspine.config.objective import ObjectiveRecipe
from dspine.config.reading import find_recipe, read_recipe, shipped_recipes
from dspine.config.recipe import Recipe, TrainingRecipe

__all__ = [
    "DatasetPromptsRecipe",
    "NanoPromptsRecipe",
    "NanoTargetRecipe",
    "ObjectiveRecipe",
    "Recipe",
    "TrainingRecipe",
    "find_recipe",
    "read_recipe",
    "shipped_recipes",
]
