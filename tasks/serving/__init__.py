"""What a promoted version says of itself to whoever runs it, and the forms in which it leaves the registry."""
