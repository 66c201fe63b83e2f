"""Pictures of HTML pages."""
