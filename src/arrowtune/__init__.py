"""arrowtune."""
