"""What people read on a terminal: results, previews, reports."""
