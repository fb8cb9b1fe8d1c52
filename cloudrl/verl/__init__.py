"""What we KNOW of verl, by release. Facts only: nothing here imports verl."""

from cloudrl.verl.keys import has_key as has_key
from cloudrl.verl.keys import release_number as release_number
