"""What we KNOW of verl, by release. Facts only: nothing here imports verl."""

from cloudrl.verl.keys import has_key as has_key
from cloudrl.verl.keys import release_number as release_number
from cloudrl.verl.releases import RELEASE as RELEASE
from cloudrl.verl.releases import RELEASES as RELEASES
from cloudrl.verl.releases import Release as Release
from cloudrl.verl.releases import release as release
