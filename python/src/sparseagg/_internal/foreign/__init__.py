"""Arrays of other libraries, known by their attributes, so that none of the libraries is imported."""
