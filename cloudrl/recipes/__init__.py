"""Named jobs as data: one YAML file each, with its numbers and where they come from."""

from cloudrl.recipes.files import Algorithm as Algorithm
from cloudrl.recipes.files import algorithm as algorithm
from cloudrl.recipes.files import algorithms as algorithms
from cloudrl.recipes.files import load as load
from cloudrl.recipes.files import load_spec as load_spec
from cloudrl.recipes.files import merge_fields as merge_fields
from cloudrl.recipes.files import names as names
from cloudrl.recipes.files import render_recipe as render_recipe
from cloudrl.recipes.files import with_algorithm as with_algorithm
