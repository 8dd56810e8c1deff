"""Starting the ranks of a run, watching them, and bringing back what they say."""
