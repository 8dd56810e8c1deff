"""Left of the store: sources, formats, rendering, tokenisation, and the store itself."""
