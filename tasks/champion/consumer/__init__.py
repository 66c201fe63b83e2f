"""Code of the models that consumers load from the registry; each file is logged alone and does not import quantgate."""
