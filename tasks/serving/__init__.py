"""Documents of a promoted version for its users, and its export formats."""
