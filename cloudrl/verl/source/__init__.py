"""What a release of verl says of itself: read from its source, without importing it."""
