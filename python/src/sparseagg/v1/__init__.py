"""Messages generated from proto/sparseagg/v1; python/generate.sh makes them."""
