"""Rows that are ids already: checked column by column, converted once or served where they lie."""
