"""The pictures of pages."""
