"""What we KNOW of verl, by release. Facts only: nothing here imports verl."""
